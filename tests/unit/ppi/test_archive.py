"""Hu et al.'s archive is read and converted exactly, or refused with one sentence, and its pickles are never run."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import tracemalloc
import types
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader

from metapt.domains.ppi.data.archive import MEMBER, read_archive
from metapt.domains.ppi.data.convert import BioDataset, ProteinGraph, main, tensors
from metapt.domains.ppi.data.graphs import Graphs, load, unpack
from metapt.errors import DataError

from ...shared_files import SAMPLE, shared
from .graphs_helper import one_graph
from .small_graphs import assembled

COARSE, FINE = 11, 3

Raw = tuple[dict[str, Any], dict[str, Any]]


OldData = type("Data", (), {"__module__": "torch_geometric.data.data"})
"""A replacement for the class of torch-geometric 1.0, whose objects were pickled as their dict."""


def with_old_classes(call: Callable[[], Any]) -> Any:
    """Call a function of torch as if torch-geometric 1.0 were installed."""
    names = ["torch_geometric", "torch_geometric.data", "torch_geometric.data.data"]
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[names[-1]].Data = OldData  # type: ignore[attr-defined]
        return call()


def draw_graphs(count: int = 70) -> Graphs:
    """Return random graphs, some without edges, with edges in random order."""
    random = np.random.default_rng(0)
    nodes = random.integers(1, 9, count)
    edges, counts = [], []
    for size in nodes:
        pairs = random.permutation([(i, j) for j in range(size) for i in range(j)] or np.empty((0, 2)))
        counts.append(int(len(pairs) * random.random()))
        edges.append(pairs[: counts[-1]])
    bits = random.integers(0, 128, sum(counts)).astype(np.uint8)
    centre, species = random.integers(nodes), random.choice([9606, 511145], count)
    labels = (random.random((count, tasks)) < 0.3 for tasks in (COARSE, FINE))
    return assembled(edges, bits, nodes, centre, species, *labels)


def as_raw(graphs: Graphs) -> Raw:
    """Return data and slices as in the archive, where each tensor has its own storage."""
    data, slices = ({name: tensor.clone() for name, tensor in part.items()} for part in tensors(graphs))
    return data | dict.fromkeys(("y", "pos", "norm", "face")), slices


def dump(raw: Any) -> bytes:
    """Return the bytes of the legacy format, written by torch."""
    content = raw
    if isinstance(raw, tuple):
        content = (OldData(), raw[1])
        content[0].__dict__.update(raw[0])
    file = io.BytesIO()
    with_old_classes(lambda: torch.save(content, file, _use_new_zipfile_serialization=False))
    return file.getvalue()


def zipped(content: bytes, path: Path, method: int = zipfile.ZIP_DEFLATED, member: str = MEMBER) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("dataset/unsupervised/processed/geometric_data_processed.pt", b"ignored")
        file.writestr(member, content)
    return path


def plain(content: bytes, path: Path) -> Path:
    path.write_bytes(content)
    return path


def assert_equal(graphs: Graphs, expected: Graphs) -> None:
    for field in fields(Graphs):
        found, right = getattr(graphs, field.name), getattr(expected, field.name)
        assert found.dtype == right.dtype, field.name
        np.testing.assert_array_equal(found, right, err_msg=field.name)


GRAPHS = draw_graphs()


@pytest.fixture
def raw() -> Raw:
    return as_raw(GRAPHS)


@pytest.fixture(scope="module")
def content() -> bytes:
    return dump(as_raw(GRAPHS))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, None])
@pytest.mark.parametrize(("chunk", "block"), [(1 << 18, 4096), (100, 3)])
def test_an_archive_is_read(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, method: int | None, chunk: int, block: int
) -> None:
    monkeypatch.setattr("metapt.domains.ppi.data.archive._CHUNK", chunk)
    monkeypatch.setattr("metapt.domains.ppi.data.archive._BLOCK", block)
    path = tmp_path / "archive"
    assert_equal(read_archive(plain(content, path) if method is None else zipped(content, path, method)), GRAPHS)


def test_what_else_data_has_is_left_out_and_a_graph_may_be_alone(tmp_path: Path, raw: Raw) -> None:
    raw[0].update(extra=torch.zeros(7, dtype=torch.uint8), empty=torch.zeros(0), names=["a", (1.5, True)])
    raw[0].update(more=OrderedDict(a=1))
    assert_equal(read_archive(plain(dump(raw), tmp_path / "archive.pt")), GRAPHS)
    graphs = draw_graphs(1)
    assert_equal(read_archive(plain(dump(as_raw(graphs)), tmp_path / "archive.pt")), graphs)


# Archives that ask for more than tensors and containers.


class Call:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def attacks(marker: Path) -> dict[str, Call]:
    code = f"open({str(marker)!r}, 'w')"
    return {
        f"{os.system.__module__}.system": Call(os.system, f"touch {marker}"),
        "builtins.eval": Call(eval, code),
        "builtins.exec": Call(exec, code),
        "torch.serialization.save": Call(torch.save, [1], str(marker)),
        "torch.storage._load_from_bytes": Call(torch.storage._load_from_bytes, pickle.dumps(Call(eval, code))),
        "builtins.getattr": Call(getattr, marker, "touch"),
    }


@pytest.mark.parametrize("name", attacks(Path()))
def test_an_archive_runs_no_code(tmp_path: Path, raw: Raw, content: bytes, name: str) -> None:
    marker = tmp_path / "marker"
    raw[0]["extra"] = attack = attacks(marker)[name]
    dumped = [pickle.dumps(attack, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    contents = [dump(raw), *(each + content for each in dumped), content[:15] + dumped[2] + content[15:]]
    for each in contents:
        for path in (plain(each, tmp_path / "archive.pt"), zipped(each, tmp_path / "archive.zip")):
            with pytest.raises(DataError, match=r"archive.* is cut, altered or not .*its pickle (asks for|has the)"):
                read_archive(path)
            assert not marker.exists()
    with pytest.raises(DataError, match=rf"asks for '[\w.]*{name.split('.')[-1]}', and only tensors and containers"):
        read_archive(plain(contents[0], tmp_path / "archive.pt"))


@pytest.mark.parametrize(
    "program",
    [
        b"(S'touch marker'\nios\nsystem\n.",  # INST
        b"\x80\x02\x82\x01.",  # EXT1
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00aK\x01sb.",  # state for a function
        b"\x80\x02ccollections\nOrderedDict\n(]K\x01atR.",
        b"\x80\x02ctorch\nFloatStorage\n)R.",
        b"\x80\x02}K\x01K\x02s.",  # a key that is no name
        b"\x80\x02" + b"\x85" * 10 + b".",  # no stack
        b"\x80\x02}N" + b"\x85" * 6000 + b"K\x01s.",  # a deep key
        b"\x80\x02}N\x85q\x00" + b"h\x00\x86q\x00" * 60 + b"K\x01s.",  # a key of 2^60 values
        b"\x80\x02N\x85q\x00" + b"h\x00\x86q\x00" * 60 + b")R.",  # a call of 2^60 values
        b"\x80\x02(X\x07\x00\x00\x00storageN\x85q\x00" + b"h\x00\x86q\x00" * 60 + b"X\x01\x00\x00\x00aNK\x01tQ.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x01\x00\x00\x00aK\x01s\x86b.",  # attributes of a function
        b"\x80\x02Nr\xff\xff\xff\xff.",  # a large memo
        b"\x80\x05\x96\x00\x00\x00\x00\x00\x01\x00\x00.",  # a large bytearray
        b"\x80\x02X\xff\xff\xff\x7fa.",
        b"\x80\x02(Q.",
        b"\x80\x02}}Q.",
        b"\x80\x02" + b"N" * 70000 + b".",
        b".",
        b"\x80\x02S'\\Q'\n.",
        b"\xff",
    ],
)
def test_strange_pickles(tmp_path: Path, content: bytes, program: bytes) -> None:
    for each in (program + content, content[:15] + program + content[15:], program):
        with pytest.raises(DataError, match=r"archive\.pt is cut, altered or not"):
            read_archive(plain(each, tmp_path / "archive.pt"))


# Cut and altered files.


def test_a_label_that_was_changed_to_another_legal_value(tmp_path: Path, raw: Raw, content: bytes) -> None:
    path = zipped(content, tmp_path / "archive.zip", zipfile.ZIP_STORED)
    species, whole = raw[0]["species_id"].numpy().tobytes(), path.read_bytes()
    assert whole.count(species) == 1
    path.write_bytes(whole.replace(species, species[8:] + species[:8]))
    with pytest.raises(DataError, match="CRC"):
        read_archive(path)


def test_sizes_beyond_the_file_are_not_tried(tmp_path: Path, raw: Raw, content: bytes) -> None:
    raw[0]["extra"] = torch.zeros(251, dtype=torch.uint8)
    small, huge = dump(raw), b"\x8a\x06" + (10**12).to_bytes(6, "little")
    assert small.count(b"K\xfb") == 2  # number of items of the storage, and shape
    count = struct.pack("<q", len(GRAPHS.edges) * 2 * 9)
    assert content.count(count) == 1
    for altered, message in (
        (content + b"x", f"it holds {len(content) + 1} bytes, and its tensors take {len(content)}"),
        (small.replace(b"K\xfb", huge), r"it holds \d+ bytes, and its tensors take 10000\d+"),
        (small.replace(b"K\xfb", huge, 1), "not the whole of its storage of 1000000000000 items"),
        (content.replace(count, struct.pack("<q", 1 << 60)), "edge_attr has not the"),
    ):
        with pytest.raises(DataError, match=message):
            read_archive(plain(altered, tmp_path / "archive.pt"))


def test_a_small_zip_file_that_unpacks_to_much_takes_no_memory(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metapt.domains.ppi.data.archive._FREE", 1 << 22)
    path = zipped(content + bytes(20_000_000), tmp_path / "bio_dataset.zip")
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="too many to be data"):
            read_archive(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "archive"
    torch.save({"x": torch.zeros(3)}, tmp_path / "new.pt")
    other = "dataset/x/processed/geometric_data_processed.pt"
    cases: list[tuple[Callable[[], Path], str]] = [
        (lambda: path, "archive can't be read"),
        (lambda: tmp_path, "can't be read"),
        (lambda: zipped(content, path, member=other), "it has no dataset/supervised"),
        (lambda: zipped(content, path, zipfile.ZIP_BZIP2), "neither stored nor deflated"),
        (lambda: tmp_path / "new.pt", "it has no dataset/supervised"),
        *((partial(plain, dump(each), path), "a pair of data and slices") for each in ([], {}, torch.ones(3))),
    ]
    for make, message in cases:
        with pytest.raises(DataError, match=message):
            read_archive(make())


# Archives in the right format, of the wrong content.


def _put(part: int, name: str, index: Any, value: float) -> Callable[[Raw], None]:
    def change(raw: Raw) -> None:
        raw[part][name][index] = value

    return change


def _replace(part: int, name: str, new: Callable[[torch.Tensor], Any]) -> Callable[[Raw], None]:
    def change(raw: Raw) -> None:
        raw[part][name] = new(raw[part][name])

    return change


def _drop_edge(raw: Raw) -> None:
    data, slices = raw
    data["edge_index"], data["edge_attr"] = data["edge_index"][:, :-1].contiguous(), data["edge_attr"][:-1].clone()
    for name in ("edge_index", "edge_attr"):
        slices[name][slices[name] == slices[name].max()] -= 1


def _twice(columns: list[int]) -> Callable[[Raw], None]:
    """Change a graph with two edges: its directed edge i becomes its edge `columns[i]`."""

    def change(raw: Raw) -> None:
        data, slices = raw
        start = int(slices["edge_index"][:-1][slices["edge_index"].diff() >= 4][0])
        for column, source in enumerate(columns):
            data["edge_index"][:, start + column] = data["edge_index"][:, start + source].clone()
            data["edge_attr"][start + column] = data["edge_attr"][start + source].clone()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_put(0, "edge_attr", (0, 7), 1), "edge_attr marks an edge as a self loop or as masked"),
        (lambda raw: raw[0]["edge_attr"][0, 0].sub_(1).neg_(), "does not have each edge once"),
        (_put(0, "edge_attr", (0, 2), 0.5), "edge_attr has values other than 0 and 1"),
        (_put(0, "edge_attr", (0, 2), float("nan")), "edge_attr has values other than 0 and 1"),
        (_put(0, "edge_index", (0, 0), -1), "edge_index has values below 0 or above 65535"),
        (_put(0, "edge_index", (0, 0), 1 << 40), "edge_index has values below 0 or above 65535"),
        (_put(0, "edge_index", (1, slice(None)), 0), "does not have each edge once"),
        (_replace(0, "edge_index", lambda edges: edges + 8), "does not join a lower to a higher node of its graph"),
        (_replace(0, "edge_index", lambda edges: edges[[0, 0]]), "does not have each edge once"),
        (_drop_edge, "does not have each edge once"),
        (_twice([0, 1, 0, 1]), "does not have each edge once"),
        (_twice([0, 1, 0]), "does not have each edge once"),
        (_twice([0, 1, 1]), "does not have each edge once"),
        (_twice([0, 0]), "does not have each edge once"),
        (_put(0, "center_node_idx", 3, 9), "graph 3 has no node where its centre should be"),
        (_put(0, "species_id", 3, 1 << 31), "species_id has values below 0 or above 2147483647"),
        (_put(0, "go_target_pretrain", 5, 2), "go_target_pretrain has values other than 0 and 1"),
        (_put(0, "go_target_downstream", 5, -1), "go_target_downstream has values other than 0 and 1"),
        (_put(0, "x", 5, 0), "x has values other than 1"),
        (
            _replace(0, "x", lambda x: x[:, 0].clone()),
            r"x is float32 \[\d+\], and with 70 graphs float32 \[\d+, 1\] is expected",
        ),
        (_replace(0, "x", lambda x: x.double()), r"x is float64"),
        (_replace(0, "x", lambda x: torch.cat([x, x[:1]])), r"slices\[x\] does not rise from 0 to \d+"),
        (_replace(0, "edge_attr", lambda bits: bits[:, :7].contiguous()), "edge_index is int64 .* is expected"),
        (_replace(0, "edge_attr", lambda bits: bits.T), "not the whole of its storage of .* row by row"),
        (_replace(0, "edge_attr", lambda bits: bits[None].clone()), "shape is illegal"),
        (_replace(0, "edge_index", lambda edges: edges.T.contiguous()), "edge_index is int64"),
        (_replace(0, "edge_index", lambda edges: edges.int()), "edge_index is int32"),
        (_replace(0, "species_id", lambda species: species[:-1]), "not the whole of its storage"),
        (_replace(0, "species_id", lambda species: species[:-1].clone()), "with 69 graphs"),
        (_replace(0, "species_id", lambda species: species[:0].clone()), "no labelled graphs"),
        (_replace(0, "go_target_pretrain", lambda labels: labels[:-1].clone()), "go_target_pretrain is int64"),
        (_replace(0, "go_target_downstream", lambda _: None), "it has no go_target_downstream"),
        (_replace(1, "x", lambda x: None), r"it has no slices\[x\]"),
        (_put(1, "x", 0, 1), r"slices\[x\] does not rise from 0"),
        (_put(1, "x", 3, -1), r"slices\[x\] has values below 0"),
        (_put(1, "x", 3, 1 << 40), r"slices\[x\] does not rise"),
        (_replace(1, "x", lambda x: torch.cat([x[:1], x[:-2], x[-1:]])), "graph 0 has no node"),
        (_put(1, "edge_index", -1, 0), r"slices\[edge_index\] does not rise"),
        (_put(1, "edge_attr", 20, 3), r"slices\[edge_attr\] differs from slices\[edge_index\]"),
        (_put(1, "species_id", 3, 4), r"slices\[species_id\] does not rise by 1"),
        (lambda raw: raw[0].update(species_id=raw[0]["center_node_idx"]), "share a storage"),
    ],
)  # fmt: skip
def test_wrong_content(tmp_path: Path, raw: Raw, change: Callable[[Raw], None], message: str) -> None:
    change(raw)
    with pytest.raises(DataError, match=rf"archive\.pt is cut, altered or not .*{message}"):
        read_archive(plain(dump(raw), tmp_path / "archive.pt"))


# The archive converted for today's torch-geometric.


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("convert")
    source = zipped(dump(as_raw(GRAPHS)), folder / "bio_dataset.zip")
    assert main([str(source), str(folder / "out")]) == 0
    return folder / "out"


def test_its_graphs_are_those_of_the_arrays(converted: Path) -> None:
    assert_equal(load(converted / "graphs.npz"), GRAPHS)
    dataset = BioDataset(converted)
    assert len(dataset) == len(GRAPHS)
    coarse, fine = unpack(GRAPHS.coarse, COARSE), unpack(GRAPHS.fine, FINE)
    for number in (0, 3, 17, 69):
        graph = dataset[number]
        start, end = GRAPHS.edge_offsets[number : number + 2]
        assert isinstance(graph, ProteinGraph)
        assert graph.num_nodes == GRAPHS.node_offsets[number + 1] - GRAPHS.node_offsets[number]
        assert (graph.x == 1).all()
        edges = GRAPHS.edges[start:end].astype(np.int64)
        np.testing.assert_array_equal(graph.edge_index[:, ::2].T, edges)
        np.testing.assert_array_equal(graph.edge_index[:, 1::2].T, edges[:, ::-1])
        bits = (GRAPHS.bits[start:end, None] >> np.arange(9) & 1).astype(np.float32)
        np.testing.assert_array_equal(graph.edge_attr, bits.repeat(2, axis=0))
        assert graph.species_id.tolist() == [GRAPHS.species[number]]
        assert graph.center_node_idx.tolist() == [GRAPHS.centre[number]]
        assert graph.go_target_pretrain.tolist() == coarse[number].tolist()
        assert graph.go_target_downstream.tolist() == fine[number].tolist()


def test_the_same_archive_gives_the_same_bytes(converted: Path) -> None:
    assert main([str(converted.parent / "bio_dataset.zip"), str(converted.parent / "again")]) == 0
    for name in ("graphs.npz", "processed/data.pt"):
        assert (converted.parent / "again" / name).read_bytes() == (converted / name).read_bytes()


def test_batches_offset_the_centres(converted: Path) -> None:
    batches = list(DataLoader(BioDataset(converted), batch_size=32))
    assert [batch.num_graphs for batch in batches] == [32, 32, 6]
    centres = torch.cat(
        [batch.center_node_idx + start for batch, start in zip(batches, GRAPHS.node_offsets[::32], strict=True)]
    )
    assert centres.tolist() == (GRAPHS.node_offsets[:-1] + GRAPHS.centre).tolist()
    batch = batches[1]
    assert batch.batch[batch.center_node_idx].tolist() == list(range(32))
    assert batch.go_target_pretrain.view(32, -1).tolist() == unpack(GRAPHS.coarse[32:64], COARSE).tolist()
    assert (batch.batch[batch.edge_index[0]] == batch.batch[batch.edge_index[1]]).all()


def test_any_dataset_opens_the_file_without_metapt(converted: Path) -> None:
    """Open the file without permission to run code, which a class in the file would need."""

    class Plain(InMemoryDataset):  # type: ignore[misc]
        @property
        def processed_file_names(self) -> str:
            return "data.pt"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = Plain(str(converted))
        dataset.load(dataset.processed_paths[0])
    assert type(dataset[0]) is Data


def test_the_stored_form_is_that_of_collate() -> None:
    data, slices = tensors(GRAPHS)
    each = [Data.from_dict(one_graph(GRAPHS, number).to_dict()) for number in range(len(GRAPHS))]
    collated, their_slices = InMemoryDataset.collate(each)
    assert collated.to_dict().keys() == data.keys() == their_slices.keys() == slices.keys()
    for name in data:
        assert torch.equal(collated[name], data[name])
        assert collated[name].dtype == data[name].dtype
        assert torch.equal(their_slices[name], slices[name])
    # Plain Data does not offset the centre, as ProteinGraph does.
    assert (Batch.from_data_list(each[:9]).center_node_idx == data["center_node_idx"][:9]).all()


def test_errors_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = plain(dump(as_raw(draw_graphs(3)))[:-1], tmp_path / "cut.pt")
    for source, message in ((cut, "cut.pt is cut"), (tmp_path / "none.zip", "none.zip can't be read")):
        assert main([str(source), str(tmp_path / "out")]) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("error: ")
        assert message in last
        assert not (tmp_path / "out").exists()
    whole = plain(dump(as_raw(draw_graphs(3))), tmp_path / "whole.pt")
    assert main([str(whole), str(whole)]) == 1
    assert "can't be written" in capsys.readouterr().err


@pytest.mark.real_data
def test_every_tensor_of_a_real_archive_is_converted(tmp_path: Path) -> None:
    (sample,) = shared(SAMPLE)
    assert main([str(sample), str(tmp_path)]) == 0
    dataset = BioDataset(tmp_path)
    with zipfile.ZipFile(sample) as archive, archive.open(MEMBER) as file:
        data, slices = with_old_classes(lambda: torch.load(file, weights_only=False))
    for name, tensor in dataset._data.to_dict().items():
        assert torch.equal(tensor, getattr(data, name)), name
        assert torch.equal(dataset.slices[name], slices[name]), name
    batch = next(iter(DataLoader(dataset, batch_size=8, shuffle=True)))
    assert batch.batch[batch.center_node_idx].tolist() == list(range(8))
