"""STRING files of three small species, and what is prepared from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from metapt.domains.ppi.config import PpiSettings
from metapt.domains.ppi.data.dataset import PpiDataset, on_device
from metapt.domains.ppi.data.prepare import run
from metapt.domains.ppi.data.sections import Ego, String, Tasks, links_name, terms_name
from metapt.domains.ppi.jobs import PREPARED, raw_names, string_of
from metapt.domains.ppi.pretraining_setting import PpiSetting
from metapt.domains.ppi.stages import PpiPrepareSettings
from metapt.machine import Machine

from .graphs_helper import related_graphs
from .small_arms import setting_in
from .small_graphs import DETAILED, write_lines

PROTEINS = 60
TERMS = 12


class StringFiles(NamedTuple):
    """Raw files by name, and the settings that belong to them: training species 11 and 12, test species 13."""

    inputs: dict[str, Path]
    settings: PpiPrepareSettings


def _links(taxon: int) -> list[str]:
    """Return a ring with chords, in both directions; every seventh link has a score of 300."""
    lines = [DETAILED]
    random = np.random.default_rng(taxon)
    for step in (1, 2, 7):
        for first in range(PROTEINS):
            channels = random.integers(0, 1000, 7) * (random.random(7) < 0.5)
            scores = " ".join(map(str, [*channels, 300 if first % 7 == 0 else 700]))
            pair = f"{taxon}.P{first:03d}", f"{taxon}.P{(first + step) % PROTEINS:03d}"
            lines += [f"{pair[0]} {pair[1]} {scores}", f"{pair[1]} {pair[0]} {scores}"]
    return lines


def _terms(taxon: int) -> list[str]:
    """Return the terms of all but the last five proteins: proteins before 60 - 4 t have term t, and 0 equals 1."""
    lines = ["#string_protein_id\tcategory\tterm\tdescription"]
    for protein in range(PROTEINS - 5):
        name, terms = f"{taxon}.P{protein:03d}", [term for term in range(TERMS) if protein < PROTEINS - 4 * term]
        lines += [f"{name}\tBiological Process (Gene Ontology)\tGO:{term:07d}\tterm {term}" for term in terms]
        lines.append(f"{name}\tReference Publications (PubMed)\tPMID:1\tnot a Gene Ontology term")
    return lines


@pytest.fixture(scope="session")
def string_files(tmp_path_factory: pytest.TempPathFactory) -> StringFiles:
    folder = tmp_path_factory.mktemp("string")
    ego, tasks = Ego(fan_out=3, max_nodes=8), Tasks(fine=4, min_proteins=12, by="depth")
    string = String(version="0", species=[11, 12, 13], ego=ego, tasks=tasks)
    ppi = PpiSettings(source="string", string=string, test_species=[13])
    for taxon in string.species:
        write_lines(folder / links_name(string, taxon), _links(taxon))
        write_lines(folder / terms_name(string, taxon), _terms(taxon))
    settings = PpiPrepareSettings(string=string_of(ppi), test_species=ppi.test_species)
    return StringFiles({name: folder / name for name in raw_names(ppi)}, settings)


@pytest.fixture(scope="session")
def prepared(string_files: StringFiles, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the paths of graphs, tasks and counts."""
    folder = tmp_path_factory.mktemp("prepared")
    outputs = {name: folder / file for name, file in PREPARED.items()}
    run(string_files.settings, string_files.inputs, outputs, Machine())
    return outputs


@pytest.fixture(scope="session")
def dataset() -> PpiDataset:
    """Return small graphs with tasks that are related."""
    return on_device(related_graphs(), "cpu")


@pytest.fixture
def make(dataset: PpiDataset, tmp_path: Path) -> Callable[..., PpiSetting]:
    """Return a function that makes a setting of twelve PT steps, see `setting_in`."""
    return partial(setting_in, tmp_path, dataset)
