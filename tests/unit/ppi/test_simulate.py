"""Generated species have STRING's files, and terms whose causes are those that are told."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from metapt.domains.ppi.data import prepare
from metapt.domains.ppi.data import simulate as sim
from metapt.domains.ppi.data.graphs import load, unpack
from metapt.domains.ppi.data.sections import SIMULATED, Ego, Tasks, links_name, string_names, terms_name
from metapt.domains.ppi.data.string_files import read_links, read_terms
from metapt.domains.ppi.pretraining_setting import related
from metapt.domains.ppi.stages import PpiPrepareSettings
from metapt.machine import Machine
from metapt.sections import SimulateSettings

PLANTED: NDArray[np.str_] = np.array([term.planted for term in sim.TERMS], np.str_)
SPECIES = sim.generate(sim.PROTEINS, sim.SEED)
LABELS = np.concatenate([each.labels for each in SPECIES.values()]).astype(float)
"""Terms of the proteins of all species."""


def outputs(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in string_names(SIMULATED)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    sim.run(SimulateSettings(source="simulated"), {}, outputs(folder), Machine())
    return folder


def test_the_same_seed_gives_the_same_species_and_bytes(tmp_path: Path) -> None:
    one, again, other = (sim.generate(60, seed) for seed in (1, 1, 2))
    for number, species in enumerate((one, again)):
        (tmp_path / str(number)).mkdir()
        sim.write(species, outputs(tmp_path / str(number)))
    for taxon, each in one.items():
        assert all(np.array_equal(getattr(each, name), getattr(again[taxon], name)) for name in vars(each))
        assert (each.labels != other[taxon].labels).any()
    for name in string_names(SIMULATED):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()


def test_links_are_as_strings(written: Path) -> None:
    """Each link stands there in both directions, without duplicates. STRING's usual threshold keeps the strong ones."""
    pair = ["protein1", "protein2"]
    for taxon, each in SPECIES.items():
        path = written / links_name(SIMULATED, taxon)
        table = pd.read_csv(path, sep=" ")
        assert list(table.columns) == [*pair, *sim.CHANNELS, "combined_score"]
        assert (table.protein1 != table.protein2).all()
        assert not table.duplicated(pair).any()
        back = table.rename(columns={"protein1": "protein2", "protein2": "protein1"})[table.columns]
        pd.testing.assert_frame_equal(*(one.sort_values(pair, ignore_index=True) for one in (table, back)))
        values = table[[*sim.CHANNELS, "combined_score"]].to_numpy()
        assert 0 == values.min() < values.max() < 1000
        strong, links = each.scores.max(axis=1) >= 400, read_links(path, taxon, 400)
        assert 0.85 < strong.mean() < 0.95
        assert (links.read, len(links.edges)) == (2 * len(each.edges), strong.sum())
        assert 7 < 2 * len(links.edges) / sim.PROTEINS < 13
        assert len(links.proteins) > 0.98 * sim.PROTEINS


def test_one_channel_keeps_its_score_several_combine_and_none_leaves_the_prior() -> None:
    one, two, none = sim.combined(np.array([[600, 0, 0, 0, 0, 0, 0], [600, 0, 0, 0, 500, 0, 0], [0] * 7]))
    assert one == pytest.approx(600, abs=1)
    assert 780 < two < 800
    assert none == 41


def test_terms_are_as_strings(written: Path) -> None:
    for taxon, each in SPECIES.items():
        path = written / terms_name(SIMULATED, taxon)
        assert len(pd.read_csv(path, sep="\t")) == each.labels.sum()
        proteins = np.array([f"{taxon}.P{number + 1:04d}" for number in range(sim.PROTEINS)], object)
        annotations, labels = read_terms(path, taxon, proteins), np.zeros_like(each.labels)
        labels[tuple(annotations.pairs.T)] = True
        np.testing.assert_array_equal(labels, each.labels)
        assert annotations.terms.description.tolist() == [f"planted: {name}" for name in PLANTED]
        carried = each.labels.sum(axis=0)
        assert carried[PLANTED == "target"].min() >= 20
        assert carried[PLANTED == "target"].max() < carried[PLANTED != "target"].min(), "fine terms are the rarest"


def test_useful_terms_tell_of_fine_ones_and_annotations_relate_few_of_them() -> None:
    """A squared correlation is about 1 / n by chance; 20 / n exceeds the largest of many."""
    squared = np.corrcoef(LABELS.T) ** 2 - np.eye(len(PLANTED))
    agreement, chance = squared[:, PLANTED == "target"].max(axis=1), 20 / len(LABELS)
    assert agreement[PLANTED == "useful"].min() > 0.05
    assert agreement[(PLANTED == "irrelevant") | (PLANTED == "noise")].max() < chance
    assert squared[PLANTED == "noise"].max() < chance
    relatives = related(LABELS[:, PLANTED != "target"], LABELS[:, PLANTED == "target"]).any(axis=1)
    assert PLANTED[PLANTED != "target"][relatives].tolist() == ["useful", "useful"]


def test_evidence_of_neighbours_shows_the_causes() -> None:
    """The frequent channels of a protein's links determine its community's causes, and no single channel does."""
    right = []
    for each in SPECIES.values():
        ends = each.edges.T.ravel()
        sums = np.stack([np.bincount(ends, np.tile(one >= 400, 2), sim.PROTEINS) for one in each.scores.T], axis=1)
        shares = sums / np.maximum(np.bincount(ends, minlength=sim.PROTEINS), 1)[:, None]
        for number, channels in enumerate(sim.CAUSES):
            guess = (shares[:, list(channels)] > 0.35).sum(axis=1) % 2 == 1
            right.append((guess == each.causes[:, number]).mean())
            single = [np.corrcoef(shares[:, channel], each.causes[:, number])[0, 1] for channel in channels]
            assert np.abs(single).max() < 0.3
    assert np.min(right) > 0.6
    assert np.mean(right) > 0.65


def test_species_have_the_same_causes_in_other_combinations() -> None:
    """Each species has all combinations of the shared causes, and half of all combinations of causes.

    About half of its proteins have each other cause, whatever the shared causes.
    """
    seen = [set(map(tuple, each.causes)) for each in SPECIES.values()]
    for combinations, each in zip(seen, SPECIES.values(), strict=True):
        assert len({causes[: sim.SHARED] for causes in combinations}) == 8
        assert len(combinations) == 32
        for values in product((False, True), repeat=sim.SHARED):
            same = each.causes[(each.causes[:, : sim.SHARED] == values).all(axis=1), sim.SHARED :]
            assert (np.abs(same.mean(axis=0) - 0.5) < 0.05).all()
    assert len(set(map(frozenset, seen))) == len(seen)


def test_prepared_with_planted_kinds(written: Path, tmp_path: Path) -> None:
    """The default choice of tasks, the rarest as fine ones, finds the fine terms; descriptions hold the truth."""
    paths = {name: tmp_path / name for name in ("graphs", "tasks", "counts")}
    string = SIMULATED.model_copy(update={"ego": Ego(hops=1, max_nodes=30), "tasks": Tasks(fine=8)})
    settings = PpiPrepareSettings(string=string, test_species=SIMULATED.species[-1:])
    prepare.run(settings, outputs(written), paths, Machine())
    graphs, tasks = load(paths["graphs"]), pd.read_csv(paths["tasks"])
    assert graphs.tasks.tolist() == [len(sim.TERMS) - 8, 8]
    found = {kind: set(part) for kind, part in tasks.groupby("kind")["description"]}
    assert found["fine"] == {"planted: target"}
    assert found["coarse"] == {"planted: useful", "planted: irrelevant", "planted: noise"}
    assert (unpack(graphs.fine, 8).sum(axis=0) == tasks.positives[tasks.kind == "fine"]).all()
