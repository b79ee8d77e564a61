"""The archive of Hu et al. (2020), "Strategies for Pre-training Graph Neural Networks", snap.stanford.edu/gnn-pretrain.

`bio_dataset.zip` holds a file in the format of torch 1.0. It begins with five pickles: a magic number, the format's
version, the byte order, the pair of a torch-geometric 1.0 `Data` and its slices, and the keys of the storages. For each
storage, the number of its items (int64) and the items follow.

For N nodes, E directed edges and G graphs, stored one graph after the other, `Data` has x [N, 1] (ones), edge_index [2,
E] (numbers of nodes within their graph), edge_attr [E, 9] (seven evidence channels, self loop, mask), species_id [G],
center_node_idx [G], go_target_pretrain [G * coarse tasks] and go_target_downstream [G * fine tasks]. For each of these,
the slices [G + 1] say where a graph begins.

The file is read by `legacy_pickle`, so that no archive can run code.
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from metapt.domains.ppi.data.graphs import EVIDENCE, Graphs, pack
from metapt.domains.ppi.data.legacy_pickle import ADVICE, Storage, Tensor, unpickle
from metapt.errors import DataError
from metapt.files import regular

MEMBER = "dataset/supervised/processed/geometric_data_processed.pt"

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_HEADER = 1 << 14  # maximal bytes of the five pickles; those of the archive take 2 kB
_FREE = 1 << 26  # bytes to which a zip file may unpack whatever its size
_MOST = 200  # otherwise the maximal factor; the archive's labels, its sparsest part, shrink to a hundredth
_CHUNK = 1 << 18  # bytes of a storage per read
_BLOCK = 4096  # graphs whose edges are compared at once
_LABELS = "go_target_pretrain", "go_target_downstream"

_Array = NDArray[Any]
_File: TypeAlias = "io.BufferedReader[Any]"  # the type parameter exists for type checkers only


@dataclass(frozen=True)
class _Rule:
    """The legal form of a tensor, and the conversion of a chunk of it [rows, width]."""

    dtype: str
    shape: tuple[int, ...]
    width: int
    keep: Callable[[_Array], _Array]


def read_archive(path: Path) -> Graphs:
    """Read the labelled graphs of Hu et al. in one pass, with little more memory than the result takes.

    `path` is bio_dataset.zip, or its member geometric_data_processed.pt. The lengths of the labels give the numbers of
    tasks. Raises DataError if the file is missing, cut, altered or of another layout; its pickle asks for anything but
    tensors and containers; or edges do not come in pairs, (i, j) and then (j, i) with the same evidence.
    """
    try:
        with (
            _opened(path) as (file, size),
            tqdm(total=size, desc=path.name, unit="B", unit_scale=True, disable=None) as bar,
        ):
            tensors = _header(file, size)
            rules = _rules(tensors)
            arrays: dict[str, _Array] = {}
            for name, tensor in tensors.items():
                rule = rules.get(name, _Rule("", (), 1, lambda rows: rows[:0]))
                try:
                    chunks = _chunks(file, tensor.storage, rule.width, bar)
                    arrays[name] = np.concatenate([rule.keep(rows) for rows in chunks])
                except DataError as error:
                    raise DataError(f"{name} {error}") from error
            if file.read(1):  # at the end of the file zipfile compares the checksum
                raise DataError("it goes on after its last storage")
        graphs = _graphs(arrays, rules)
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror or error}): name the archive of Hu et al.") from error
    except DataError as error:
        raise DataError(f"{path} is cut, altered or not the archive of Hu et al. ({error}): {ADVICE}.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error, MemoryError) as error:
        raise DataError(f"{path} is cut or altered ({str(error) or type(error).__name__}): {ADVICE}.") from error
    return graphs


@contextmanager
def _opened(path: Path) -> Iterator[tuple[_File, int]]:
    """Open the legacy file, in a zip file or alone, and yield it with its size in bytes."""
    with io.BufferedReader(open(path, "rb", buffering=0, opener=regular), _HEADER) as plain:
        if plain.peek(4)[:4] != b"PK\x03\x04":
            yield plain, path.stat().st_size
            return
        with zipfile.ZipFile(plain) as archive:
            end = MEMBER.removeprefix("dataset")  # the folder above may have any name
            found = [info for info in archive.infolist() if f"/{info.filename}".endswith(end)]
            if len(found) != 1:
                raise DataError(f"it has {len(found) or 'no'} {MEMBER}")
            if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(f"{found[0].filename} is neither stored nor deflated")
            packed, size = found[0].compress_size, found[0].file_size
            if size > max(_FREE, _MOST * packed):
                raise DataError(f"{found[0].filename} unpacks {packed} bytes to {size}, too many to be data")
            with archive.open(found[0]) as member:
                yield io.BufferedReader(member, _HEADER), size


def _header(file: _File, size: int) -> dict[str, Tensor]:
    """Return the tensors `name` of the data and `slices[name]` of the slices, in the order of their items."""
    head = io.BytesIO(file.peek(_HEADER)[:_HEADER])
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes in strings, which only altered files have
            magic, version, machine, saved, keys = (unpickle(head) for _ in range(5))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"it does not begin with pickles of tensors and containers: {error}") from error
    if magic != _MAGIC or version != _VERSION:
        raise DataError("it was not written by torch 1.0")
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise DataError("it was written on a machine with another byte order")
    if not (isinstance(saved, tuple) and len(saved) == 2 and all(isinstance(part, dict) for part in saved)):
        raise DataError("it does not hold a pair of data and slices")
    entries = {**saved[0], **{f"slices[{name}]": value for name, value in saved[1].items()}}
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    owners = {tensor.storage.key: name for name, tensor in tensors.items()}
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(owners):
        raise DataError("its list of storages is not that of its tensors")
    if len(owners) != len(tensors):
        raise DataError("two of its tensors share a storage")
    needed = head.tell() + sum(8 + tensor.storage.items * tensor.storage.dtype.itemsize for tensor in tensors.values())
    if needed != size:
        raise DataError(f"it holds {size} bytes, and its tensors take {needed}")
    file.read(head.tell())
    return {owners[key]: tensors[owners[key]] for key in keys}


def _rules(tensors: dict[str, Tensor]) -> dict[str, _Rule]:
    """Return the legal forms of the tensors; raises DataError if one has another type or shape."""
    names = ["x", "edge_index", "edge_attr", "species_id", "center_node_idx", *_LABELS]
    if missing := [name for name in (*names, *(f"slices[{name}]" for name in names)) if name not in tensors]:
        raise DataError(f"it has no {missing[0]}")
    nodes, _, edge_items, graphs, _, coarse, fine = (tensors[name].storage.items for name in names)
    if not graphs or min(coarse, fine) < graphs:
        raise DataError("it has no labelled graphs")
    edges, coarse, fine = edge_items // 9, coarse // graphs, fine // graphs
    numbers, taxa = partial(_integers, dtype=np.uint16), partial(_integers, dtype=np.int32)
    rules = {
        "x": _Rule("<f4", (nodes, 1), 1, _ones),
        "edge_index": _Rule("<i8", (2, edges), 1, numbers),
        "edge_attr": _Rule("<f4", (edges, 9), 9, _evidence),
        "species_id": _Rule("<i8", (graphs,), 1, taxa),
        "center_node_idx": _Rule("<i8", (graphs,), 1, numbers),
        "go_target_pretrain": _Rule("<i8", (graphs * coarse,), coarse, _packed),
        "go_target_downstream": _Rule("<i8", (graphs * fine,), fine, _packed),
        **{f"slices[{name}]": _Rule("<i8", (graphs + 1,), 1, _integers) for name in names},
    }
    for name, rule in rules.items():
        found, dtype = tensors[name], np.dtype(rule.dtype)
        if (found.storage.dtype, found.shape) != (dtype, rule.shape):
            wrong = f"{found.storage.dtype} {list(found.shape)}"
            raise DataError(f"{name} is {wrong}, and with {graphs} graphs {dtype} {list(rule.shape)} is expected")
    return rules


def _chunks(file: _File, storage: Storage, width: int, bar: tqdm[Any]) -> Iterator[_Array]:
    """Yield at least one chunk [rows, width] of a storage's items; each is valid until the next one."""
    if file.read(8) != struct.pack("<q", storage.items):
        raise DataError(f"has not the {storage.items} items that it should have")
    step = max(_CHUNK // (width * storage.dtype.itemsize), 1) * width
    buffer = np.empty(min(step, storage.items), storage.dtype)
    for start in range(0, max(storage.items, 1), step):
        chunk = buffer[: storage.items - start]
        if file.readinto(chunk.view(np.uint8).data) != chunk.nbytes:
            raise DataError("is cut")
        bar.update(chunk.nbytes)
        yield chunk.reshape(-1, width)


def _ones(rows: _Array) -> _Array:
    if (rows != 1).any():
        raise DataError("has values other than 1")
    return rows[:0]


def _integers(rows: _Array, dtype: type[np.integer[Any]] = np.int64) -> _Array:
    largest = np.iinfo(dtype).max
    if rows.size and (rows.min() < 0 or rows.max() > largest):
        raise DataError(f"has values below 0 or above {largest}")
    return rows[:, 0].astype(dtype)


def _evidence(rows: _Array) -> _Array:
    if not ((rows == 0) | (rows == 1)).all():
        raise DataError("has values other than 0 and 1")
    bits = rows @ (2.0 ** np.arange(9)).astype(np.float32)
    if (bits >= 1 << EVIDENCE).any():
        raise DataError("marks an edge as a self loop or as masked")
    return bits.astype(np.uint8)


def _packed(rows: _Array) -> _Array:
    if rows.min() < 0 or rows.max() > 1:
        raise DataError("has values other than 0 and 1")
    return pack(rows.astype(np.bool_))


def _graphs(arrays: dict[str, _Array], rules: dict[str, _Rule]) -> Graphs:
    """Return the prepared form, after a check of the slices, the pairs of edges, and the places of centres and ends."""
    for name in ("species_id", "center_node_idx", *_LABELS):
        step = rules[name].width
        if not np.array_equal(arrays[f"slices[{name}]"], step * np.arange(len(arrays["species_id"]) + 1)):
            raise DataError(f"slices[{name}] does not rise by {step} from graph to graph")
    for name, last in (("x", rules["x"].shape[0]), ("edge_index", rules["edge_index"].shape[1])):
        offsets = arrays[f"slices[{name}]"]
        if offsets[0] != 0 or offsets[-1] != last or (np.diff(offsets) < 0).any():
            raise DataError(f"slices[{name}] does not rise from 0 to {last}")
    if not np.array_equal(offsets, arrays["slices[edge_attr]"]):
        raise DataError("slices[edge_attr] differs from slices[edge_index]")
    edges, bits = _undirected(arrays["edge_index"], arrays["edge_attr"], offsets)
    sizes, edge_offsets = np.diff(arrays["slices[x]"]), offsets // 2
    if (bad := arrays["center_node_idx"] >= sizes).any():
        raise DataError(f"graph {int(np.argmax(bad))} has no node where its centre should be")
    if (bad := (edges[:, 0] == edges[:, 1]) | (edges[:, 1] >= np.repeat(sizes, np.diff(edge_offsets)))).any():
        raise DataError(f"edge {int(np.argmax(bad))} does not join a lower to a higher node of its graph")
    return Graphs(
        node_offsets=arrays["slices[x]"],
        edge_offsets=edge_offsets,
        edges=edges,
        bits=bits,
        centre=arrays["center_node_idx"],
        species=arrays["species_id"],
        coarse=arrays["go_target_pretrain"],
        fine=arrays["go_target_downstream"],
        tasks=np.array([rules[name].width for name in _LABELS], np.int64),
    )


def _undirected(ends: _Array, bits: _Array, offsets: _Array) -> tuple[_Array, _Array]:
    """Return edges [edges, 2] and their bits from pairs of directed edges, whose graphs begin at `offsets`."""
    wanted = "does not have each edge once in each direction, one after the other, with the same evidence"
    if (odd := offsets % 2 != 0).any():
        raise DataError(f"graph {int(np.argmax(odd)) - 1} {wanted}")
    i, j = ends.reshape(2, -1, 2)
    wrong = (i != j[:, ::-1]).any(axis=1) | (bits[::2] != bits[1::2])
    edges = np.stack([np.minimum(i, j)[:, 0], np.maximum(i, j)[:, 0]], axis=1)
    if wrong.any():
        raise DataError(f"graph {int(np.searchsorted(offsets // 2, np.argmax(wrong), 'right')) - 1} {wanted}")
    for first in range(0, len(offsets) - 1, _BLOCK):
        begins = offsets[first : first + _BLOCK + 1] // 2
        a, b = edges[begins[0] : begins[-1]].T.astype(np.int64)
        graph = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
        keys = np.sort(graph << 32 | a << 16 | b, kind="stable")  # stable sorts merge ascending runs, as there are here
        if len(same := keys[1:][keys[1:] == keys[:-1]]):
            raise DataError(f"graph {first + int(same[0] >> 32)} {wanted}")
    return edges, np.ascontiguousarray(bits[::2])
