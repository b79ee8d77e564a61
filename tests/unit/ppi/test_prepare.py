"""Prepared graphs are the raw files' ego graphs and terms, from any source, and tasks are chosen by the config."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from metapt.domains.ppi import jobs
from metapt.domains.ppi.config import PpiSettings
from metapt.domains.ppi.data import prepare
from metapt.domains.ppi.data.ego import ego_graphs, network
from metapt.domains.ppi.data.graphs import Graphs, load, unpack
from metapt.domains.ppi.data.prepare import TASKS, depth, run, select
from metapt.domains.ppi.data.sections import ARCHIVE, SIMULATED, String, Tasks, links_name, string_names
from metapt.domains.ppi.data.string_files import read_links
from metapt.domains.ppi.stages import PpiPrepareSettings
from metapt.errors import ConfigError, DataError
from metapt.machine import Machine

from ...shared_files import SAMPLE, shared


@pytest.fixture
def outputs(tmp_path: Path) -> dict[str, Path]:
    return {name: tmp_path / f"prepared/{name}" for name in ("graphs", "tasks", "counts")}


def of_archive(test_species: list[int]) -> PpiPrepareSettings:
    return PpiPrepareSettings(string=None, test_species=test_species)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def counts(path: Path) -> dict[str, float]:
    return {row["name"]: float(row["value"]) for row in rows(path)}


def labels(graphs: Graphs) -> NDArray[np.uint8]:
    coarse, fine = map(int, graphs.tasks)
    return np.concatenate([unpack(graphs.coarse, coarse), unpack(graphs.fine, fine)], axis=1)


def test_names_of_raw_files() -> None:
    string = String(version="11.5", species=[4, 7], links="physical.links.full")
    kinds = ("physical.links.full", "enrichment.terms")
    names = [f"{taxon}.protein.{kind}.v11.5.txt.gz" for taxon in (4, 7) for kind in kinds]
    other, made = String(), string_names(SIMULATED)
    cases = ("string", 7, string, names), ("hu2020", 9606, other, [ARCHIVE]), ("simulated", 900005, other, made)
    for source, species, given, expected in cases:
        assert jobs.raw_names(PpiSettings(source=source, string=given, test_species=[species])) == expected


def test_labels_are_the_terms_of_the_files(string_files: Any, prepared: dict[str, Path]) -> None:
    """Of 55 proteins with terms, those before 60 - 4 t carry term t: 0 and 1 are one task, 11 is frequent enough."""
    graphs, tasks = load(prepared["graphs"]), rows(prepared["tasks"])
    assert tuple(tasks[0]) == TASKS
    assert [(row["kind"], row["task"]) for row in tasks] == [
        *(("coarse", str(task)) for task in range(7)),
        *(("fine", str(task)) for task in range(4)),
    ]
    assert [row["term"] for row in tasks] == [f"GO:{term:07d}" for term in (0, *range(2, 12))]
    assert {row["category"] for row in tasks} == {"Biological Process (Gene Ontology)"}
    assert tasks[-1]["description"] == "term 11"
    assert graphs.species.tolist() == [11] * 55 + [12] * 55 + [13] * 55
    expected = np.stack([np.arange(165) % 55 < 60 - 4 * int(row["term"][3:]) for row in tasks], axis=1)
    np.testing.assert_array_equal(labels(graphs), expected)
    assert [int(row["positives"]) for row in tasks] == expected.sum(axis=0).tolist()


def test_graphs_are_the_ego_graphs_of_the_proteins(string_files: Any, prepared: dict[str, Path]) -> None:
    graphs = load(prepared["graphs"])
    string = string_files.settings.string
    links = read_links(string_files.inputs[links_name(string, 12)], 12, string.min_score)
    egos = ego_graphs(network(len(links.proteins), links.edges, links.bits), np.arange(55), string.ego)
    nodes, edges = graphs.node_offsets[55:111], graphs.edge_offsets[55:111]
    np.testing.assert_array_equal(nodes - nodes[0], egos.node_offsets)
    np.testing.assert_array_equal(edges - edges[0], egos.edge_offsets)
    np.testing.assert_array_equal(graphs.edges[edges[0] : edges[-1]], egos.edges)
    np.testing.assert_array_equal(graphs.bits[edges[0] : edges[-1]], egos.bits)
    np.testing.assert_array_equal(graphs.centre[55:110], egos.centre)


def test_counts(prepared: dict[str, Path]) -> None:
    graphs, found = load(prepared["graphs"]), counts(prepared["counts"])
    expected = {
        "links read, 11": 360,
        "links that reach the score, 11": 306,
        "undirected edges, 11": 153,
        "proteins with links, 11": 60,
        "proteins with terms, 11": 55,
        "proteins with links and terms, 11": 55,
        "terms that a protein with links carries": 12,
        "terms that enough proteins carry": 12,
        "of these, carried by different proteins": 11,
        "least depth of a fine term": 7,
        "greatest depth of a fine term": 10,
        "graphs": 165,
        "graphs, 13": 55,
        "nodes per graph, mean": np.diff(graphs.node_offsets).mean(),
        "nodes per graph, most": 8,
        "undirected edges per graph, mean": len(graphs.edges) / 165,
        "coarse tasks": 7,
        "fine tasks": 4,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_only_proteins_with_a_task_get_a_graph(string_files: Any, outputs: dict[str, Path]) -> None:
    """The first 16 and 20 proteins carry the two rarest terms, fine and coarse."""
    terms = {name: path for name, path in string_files.inputs.items() if "terms" in name}
    for name, path in terms.items():
        lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
        terms[name] = outputs["graphs"].parent.parent / name
        kept = [line for line in lines if line.startswith("#") or "GO:0000010" in line or "GO:0000011" in line]
        terms[name].write_bytes(gzip.compress("".join(kept).encode()))
    own = string_files.settings.string.model_copy(update={"tasks": Tasks(fine=1, min_proteins=12)})
    settings = string_files.settings.model_copy(update={"test_species": [11], "string": own})
    run(settings, string_files.inputs | terms, outputs, Machine())
    graphs = load(outputs["graphs"])
    assert graphs.species.tolist() == [11] * 20 + [12] * 20 + [13] * 20
    assert labels(graphs).sum(axis=0).tolist() == [60, 48]


def test_the_same_files_give_the_same_bytes_and_a_cut_one_none(
    string_files: Any, prepared: dict[str, Path], outputs: dict[str, Path], tmp_path: Path
) -> None:
    last = next(name for name in reversed(string_files.inputs) if "terms" in name)
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(string_files.inputs[last].read_bytes()[:-9])
    with pytest.raises(DataError, match=r"cut\.txt\.gz is cut"):
        run(string_files.settings, string_files.inputs | {last: cut}, outputs, Machine())
    assert not any(path.exists() for path in outputs.values())
    run(string_files.settings, string_files.inputs, outputs, Machine())
    assert [path.read_bytes() for path in outputs.values()] == [prepared[name].read_bytes() for name in outputs]


def test_test_species_that_the_archive_lacks(outputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "read_archive", lambda path: SimpleNamespace(species=np.array([7, 8, 8])))
    for species, words in (([9606], "no species 9606; legal: 7, 8"), ([7, 8], "names all species that the data have")):
        with pytest.raises(ConfigError, match=words):
            run(of_archive(species), {ARCHIVE: Path("none")}, outputs, Machine())


@pytest.mark.real_data
def test_real_archive_sample(outputs: dict[str, Path]) -> None:
    """Tasks of the archive have a number only, since it has no names of terms."""
    (sample,) = shared(SAMPLE)
    run(of_archive([224308]), {ARCHIVE: sample}, outputs, Machine())
    graphs, tasks = load(outputs["graphs"]), rows(outputs["tasks"])
    assert len(graphs) == counts(outputs["counts"])["graphs"] == 450
    assert graphs.tasks.tolist() == [418, 40]
    assert [int(row["positives"]) for row in tasks] == labels(graphs).sum(axis=0).tolist()
    assert {row["term"] for row in tasks} == {""}


@pytest.mark.slow
@pytest.mark.real_data
def test_real_networks(outputs: dict[str, Path]) -> None:
    string = String(species=[511145, 224308], links="physical.links.full", min_score=0)
    names = string_names(string)
    inputs = dict(zip(names, shared(*(f"ppi/{name}" for name in names)), strict=True))
    run(PpiPrepareSettings(string=string, test_species=[224308]), inputs, outputs, Machine())
    graphs, found = load(outputs["graphs"]), counts(outputs["counts"])
    assert np.unique(graphs.species, return_counts=True)[1].tolist() == [2007, 2693]
    assert found["terms that enough proteins carry"] == 458
    assert found["of these, carried by different proteins"] == 426
    assert graphs.tasks.tolist() == [386, 40]
    of_test = labels(graphs)[graphs.species == 224308].sum(axis=0)
    of_training = labels(graphs)[graphs.species == 511145].sum(axis=0)
    assert min(of_test.min(), of_training.min()) >= 20


TEST = np.arange(10) >= 6  # four proteins of the test species


CHAIN = [range(10), range(8), range(1, 8), [8, 0], [2, 3, 4, 5, 6, 9], [9, 1, 8]]
"""A chain of three terms, a rare one without ancestors, another common one, and another rare one."""
FEW = [[0, 1, 6, 7], [0, 1, 2, 3, 6], [0, 6, 7, 8], [0, 1, 2, 6, 7], [], range(10)]
EQUAL = [[0, 6], range(10), [0, 6], [0, 7], range(10), [6, 0], [1, 8]]


def matrix(*columns: ArrayLike) -> sparse.csc_array:
    """Return a matrix of terms, each given by the numbers of the proteins, of ten, that carry it."""
    labels = np.zeros((10, len(columns)), np.uint8)
    for term, carriers in enumerate(columns):
        labels[np.asarray(carriers, int), term] = 1
    return sparse.csc_array(labels)


@pytest.mark.parametrize(
    ("terms", "tasks", "expected"),
    [
        # Enough proteins carry a term in training and in test.
        (FEW, {"min_proteins": 2}, {"carried": 5, "frequent": 3, "distinct": 3, "fine": [0], "coarse": [3, 5]}),
        (FEW, {"min_proteins": 1}, {"carried": 5, "frequent": 5}),
        # Equal terms count once, under the first one's name.
        (EQUAL, {"fine": 2}, {"frequent": 7, "distinct": 4, "fine": [0, 3], "coarse": [1, 6]}),
        (EQUAL, {"fine": 2, "by": "depth"}, {"distinct": 4, "fine": [0, 3], "coarse": [1, 6]}),
        (CHAIN, {"fine": 2, "by": "frequency"}, {"fine": [3, 5]}),
        (CHAIN, {"by": "depth"}, {"fine": [2], "depths": [2], "coarse": [0, 1, 3, 4, 5]}),
        (CHAIN, {"by": "depth", "coarse": 2}, {"coarse": [0, 1]}),
    ],
)
def test_which_terms_become_tasks(terms: list[Any], tasks: dict[str, Any], expected: dict[str, Any]) -> None:
    chosen = select(matrix(*terms), TEST, Tasks.model_validate({"fine": 1, "min_proteins": 1} | tasks))
    assert {name: np.asarray(getattr(chosen, name)).tolist() for name in expected} == expected


def test_too_few_terms() -> None:
    with pytest.raises(
        ConfigError, match=r"^1 different Gene Ontology terms .* at least 2 proteins .* for 1 fine task"
    ):
        select(matrix(range(10), range(10), [0]), TEST, Tasks(fine=1, min_proteins=2))
    with pytest.raises(ConfigError, match=r"^0 different .* lower ppi\.string\.tasks\.fine"):
        select(matrix([0]), TEST, Tasks())


def test_depth_against_a_naive_recursion() -> None:
    random = np.random.default_rng(3)
    dense = np.unique(random.random((12, 80)) < random.random(80) ** 2, axis=1)
    dense = dense[:, dense.any(axis=0)]
    sets = [frozenset(np.flatnonzero(column)) for column in dense.T]

    def naive(term: frozenset[int]) -> int:
        return max((naive(other) + 1 for other in sets if term < other), default=0)

    assert depth(sparse.csc_array(dense.astype(np.uint8))).tolist() == [naive(term) for term in sets]
