"""The converted archive opens with current torch-geometric and holds the same graphs."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader

from metapt.domains.ppi.data.convert import BioDataset, ProteinGraph, main, tensors
from metapt.domains.ppi.data.graphs import load, unpack

from ...shared_files import SAMPLE, shared
from .test_archive import (
    COARSE,
    FINE,
    GRAPHS,
    as_raw,
    assert_equal,
    draw_graphs,
    dump,
    load_sample,
    plain,
    zipped,
)


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
    each = [Data(**{name: _part(data, slices, name, number) for name in data}) for number in range(len(GRAPHS))]
    collated, their_slices = InMemoryDataset.collate(each)
    assert collated.to_dict().keys() == data.keys() == their_slices.keys() == slices.keys()
    for name in data:
        assert torch.equal(collated[name], data[name])
        assert collated[name].dtype == data[name].dtype
        assert torch.equal(their_slices[name], slices[name])
    # Plain Data does not offset the centre, as ProteinGraph does.
    assert (Batch.from_data_list(each[:9]).center_node_idx == data["center_node_idx"][:9]).all()


def _part(data: dict[str, torch.Tensor], slices: dict[str, torch.Tensor], name: str, number: int) -> torch.Tensor:
    start, end = slices[name][number : number + 2].tolist()
    return data[name].narrow(1 if name == "edge_index" else 0, start, end - start)


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
def test_sample(tmp_path: Path) -> None:
    """Compare every tensor of the archive bit by bit."""
    (sample,) = shared(SAMPLE)
    assert main([str(sample), str(tmp_path)]) == 0
    dataset = BioDataset(tmp_path)
    data, slices = load_sample(sample)
    for name, tensor in dataset._data.to_dict().items():
        assert torch.equal(tensor, getattr(data, name)), name
        assert torch.equal(dataset.slices[name], slices[name]), name
    batch = next(iter(DataLoader(dataset, batch_size=8, shuffle=True)))
    assert batch.batch[batch.center_node_idx].tolist() == list(range(8))
