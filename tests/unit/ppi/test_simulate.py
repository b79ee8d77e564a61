from __future__ import annotations

import gzip
from dataclasses import fields
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from metapt.domains.ppi.data import prepare
from metapt.domains.ppi.data import simulate as sim
from metapt.domains.ppi.data.graphs import load, related, unpack
from metapt.domains.ppi.data.sections import SIMULATED, Ego, Tasks
from metapt.domains.ppi.data.sources import links_name, string_names, terms_name
from metapt.domains.ppi.data.string_files import read_links, read_terms
from metapt.domains.ppi.stages import PpiPrepareSettings
from metapt.errors import ConfigError
from metapt.machine import Machine
from metapt.sections import SimulateSettings

PLANTED: NDArray[np.str_] = np.array([term.planted for term in sim.TERMS], np.str_)


@pytest.fixture(scope="module")
def species() -> dict[int, sim.Species]:
    return sim.generate(sim.PROTEINS, sim.SEED)


@pytest.fixture(scope="module")
def written(species: dict[int, sim.Species], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    sim.write(species, outputs(folder))
    return folder


def outputs(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in string_names(SIMULATED)}


def squared_correlation(species: dict[int, sim.Species]) -> NDArray[np.float64]:
    """Return squared correlations of all pairs of terms, over the proteins of all species."""
    labels = np.concatenate([each.labels for each in species.values()])
    return np.asarray(np.corrcoef(labels.T.astype(float)) ** 2, np.float64)


def test_causes_of_terms() -> None:
    """Irrelevant terms share no cause or channel with fine terms; useful terms have causes of fine terms only."""
    shared = set(range(sim.SHARED))
    for term in sim.TERMS:
        causes = {cause for cause, _ in term.causes}
        assert bool(causes) == (term.planted != "noise")
        assert causes <= shared if term.planted in ("target", "useful") else not causes & shared
    assert [int((name == PLANTED).sum()) for name in ("target", "useful", "irrelevant", "noise")] == [8, 12, 24, 16]
    channels = [set().union(*causes) for causes in (sim.CAUSES[: sim.SHARED], sim.CAUSES[sim.SHARED :])]
    assert not channels[0] & channels[1]
    assert channels[0] | channels[1] == set(range(len(sim.CHANNELS)))


def test_the_same_seed_gives_the_same_species_and_bytes(
    species: dict[int, sim.Species], written: Path, tmp_path: Path
) -> None:
    again, other = sim.generate(sim.PROTEINS, sim.SEED), sim.generate(sim.PROTEINS, sim.SEED + 1)
    for taxon, each in species.items():
        for field in fields(each):
            np.testing.assert_array_equal(getattr(each, field.name), getattr(again[taxon], field.name))
        assert (each.labels != other[taxon].labels).any()
    sim.run(SimulateSettings(source="simulated"), {}, outputs(tmp_path), Machine())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(string_names(SIMULATED))
    for name in string_names(SIMULATED):
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes()
    with pytest.raises(ConfigError, match="'simulated'"):
        sim.run(SimulateSettings(source="string"), {}, outputs(tmp_path), Machine())


def test_links_are_as_strings(species: dict[int, sim.Species], written: Path) -> None:
    """The file has STRING's header and columns, both directions of each link, no duplicates and no self loops."""
    for taxon, each in species.items():
        path = written / links_name(SIMULATED, taxon)
        with gzip.open(path, "rt") as file:
            assert file.readline() == (
                "protein1 protein2 neighborhood fusion cooccurence coexpression experimental database textmining "
                "combined_score\n"
            )
        table = pd.read_csv(path, sep=" ")
        assert len(table) == 2 * len(each.edges)
        assert (table.protein1 != table.protein2).all()
        assert not table.duplicated(["protein1", "protein2"]).any()
        values = list(table.columns[2:])
        back = table.rename(columns={"protein1": "protein2", "protein2": "protein1"})[table.columns]
        order = ["protein1", "protein2"]
        pd.testing.assert_frame_equal(
            table.sort_values(order, ignore_index=True), back.sort_values(order, ignore_index=True)
        )
        assert table[values].to_numpy().min() == 0
        assert table[values].to_numpy().max() < 1000


def test_evidence_makes_a_link(species: dict[int, sim.Species], written: Path) -> None:
    """STRING's usual threshold, 400, keeps the links of the model and none of the weak ones.

    One channel keeps its score, several combine to a higher one, and none leaves STRING's prior.
    """
    one, two, none = sim.combined(np.array([[600, 0, 0, 0, 0, 0, 0], [600, 0, 0, 0, 500, 0, 0], [0] * 7]))
    assert one == pytest.approx(600, abs=1)
    assert 780 < two < 800
    assert none == 41
    for taxon, each in species.items():
        strong = each.scores.max(axis=1) >= 400
        assert 0.85 < strong.mean() < 0.95
        links = read_links(written / links_name(SIMULATED, taxon), taxon, 400)
        assert len(links.edges) == strong.sum()
        assert 7 < 2 * len(links.edges) / sim.PROTEINS < 13
        assert len(links.proteins) > 0.98 * sim.PROTEINS


def test_terms_are_as_strings(species: dict[int, sim.Species], written: Path) -> None:
    for taxon, each in species.items():
        path = written / terms_name(SIMULATED, taxon)
        table = pd.read_csv(path, sep="\t")
        assert list(table.columns) == ["#string_protein_id", "category", "term", "description"]
        assert set(table.category) == {"Biological Process (Gene Ontology)"}
        assert len(table) == each.labels.sum()
        proteins = np.array([f"{taxon}.P{number + 1:04d}" for number in range(sim.PROTEINS)], object)
        annotations = read_terms(path, taxon, proteins)
        labels = np.zeros_like(each.labels)
        labels[tuple(annotations.pairs.T)] = True
        np.testing.assert_array_equal(labels, each.labels)
        assert annotations.terms.description.tolist() == [f"planted: {name}" for name in PLANTED]


def test_fine_terms_are_the_rarest_in_every_species(species: dict[int, sim.Species]) -> None:
    for each in species.values():
        carried = each.labels.sum(axis=0)
        assert carried[PLANTED == "target"].min() >= 20
        assert carried[PLANTED == "target"].max() < carried[PLANTED != "target"].min()


def test_useful_terms_tell_of_fine_ones(species: dict[int, sim.Species]) -> None:
    """A squared correlation is about 1 / n by chance; 20 / n exceeds the largest of many."""
    agreement = squared_correlation(species)[:, PLANTED == "target"].max(axis=1)
    assert agreement[PLANTED == "useful"].min() > 0.05
    chance = 20 / (len(species) * sim.PROTEINS)
    assert agreement[(PLANTED == "irrelevant") | (PLANTED == "noise")].max() < chance
    others = squared_correlation(species) - np.eye(len(PLANTED))
    assert others[PLANTED == "noise"].max() < chance


def test_annotations_relate_a_few_useful_terms_to_fine_ones(species: dict[int, sim.Species]) -> None:
    """The related terms resemble ancestors in the ontology; most useful terms are not recognised as related."""
    labels = np.concatenate([each.labels for each in species.values()]).astype(int)
    relatives = related(labels[:, PLANTED != "target"], labels[:, PLANTED == "target"]).any(axis=1)
    assert PLANTED[PLANTED != "target"][relatives].tolist() == ["useful", "useful"]


def test_evidence_of_neighbours_shows_the_causes(species: dict[int, sim.Species]) -> None:
    """The frequent channels of a protein's links determine its community's causes, and no single channel does."""
    right = []
    for each in species.values():
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


def test_species_have_the_same_causes_in_other_combinations(species: dict[int, sim.Species]) -> None:
    """Each species has all combinations of the shared causes, and half of all combinations of causes."""
    seen = [set(map(tuple, each.causes)) for each in species.values()]
    for combinations in seen:
        assert len({causes[: sim.SHARED] for causes in combinations}) == 8
        assert len(combinations) == 32
    for each in species.values():  # about half of the proteins have each other cause, whatever the shared causes
        for values in product((False, True), repeat=sim.SHARED):
            same = each.causes[(each.causes[:, : sim.SHARED] == values).all(axis=1), sim.SHARED :]
            assert (np.abs(same.mean(axis=0) - 0.5) < 0.05).all()
    assert len(set(map(frozenset, seen))) == len(seen)


def test_prepared_with_planted_kinds(written: Path, tmp_path: Path) -> None:
    """The default choice of tasks, the rarest as fine ones, finds the fine terms; descriptions hold the truth."""
    paths = {
        name: tmp_path / file
        for name, file in (("graphs", "graphs.npz"), ("tasks", "tasks.csv"), ("counts", "counts.csv"))
    }
    string = SIMULATED.model_copy(update={"ego": Ego(hops=1, max_nodes=30), "tasks": Tasks(fine=8)})
    settings = PpiPrepareSettings(source="simulated", string=string, test_species=SIMULATED.species[-1:])
    prepare.run(settings, outputs(written), paths, Machine())
    graphs, tasks = load(paths["graphs"]), pd.read_csv(paths["tasks"])
    assert set(tasks.description[tasks.kind == "fine"]) == {"planted: target"}
    assert set(tasks.description[tasks.kind == "coarse"]) == {
        "planted: useful",
        "planted: irrelevant",
        "planted: noise",
    }
    assert graphs.tasks.tolist() == [len(sim.TERMS) - 8, 8]
    assert (unpack(graphs.fine, 8).sum(axis=0) == tasks.positives[tasks.kind == "fine"]).all()
