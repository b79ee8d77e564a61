"""Readers of files from outside, given altered files: an error of ours or the right data; no crash, hang or silence.

If a reader accepts a file, its result is compared with a naive reading of that file, or, if a checksum protects the
file, with the content before it was altered.
"""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import re
import resource
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metapt.domains.ecg.data import prepare
from metapt.domains.ecg.data.simulate import write_record
from metapt.domains.ecg.data.sources import CLASSES, read_database, read_signals
from metapt.domains.mnist.data import read_idx, write_idx
from metapt.domains.ppi.data.archive import read_archive
from metapt.domains.ppi.data.graphs import unpack
from metapt.domains.ppi.data.legacy_pickle import Tensor, unpickle
from metapt.domains.ppi.data.string_files import CHANNELS, read_links, read_terms
from metapt.errors import MetaptError
from metapt.machine import Machine
from metapt.sections import JobSettings

from ...unit.ppi import test_archive as archives
from .conftest import FULL

SECONDS = 30
TAXON = 11

many = settings(
    max_examples=10_000 if FULL else 100, derandomize=True, database=None, deadline=None,
    suppress_health_check=[*HealthCheck],
)  # fmt: skip


def read(call: Callable[[], Any]) -> Any:
    """What a reader returns, or None where it refuses with an error of ours; at most `SECONDS`."""

    def hang(*_: object) -> None:
        raise AssertionError(f"the reader hangs: it takes more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        found = call()
    except MetaptError:
        return None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return found


TOKENS = [
    *(bytes([value]) for value in (0, 1, 8, 10, 13, 32, 34, 39, 44, 45, 58, 123, 125, 127, 128, 255)),
    *b'nan inf -1 1e999 0x10 99999999999999999999 \xff\xfe \xc3\x28 "" <html> PK\x03\x04'.split(b" "),
    *(b"\t", b"\n\n", b"[]" * 50, b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x1f\x8b\x08"),
    *("١٢".encode(), "\u2028".encode()),
]
CHANGES = ["cut", *3 * ["flip"], *3 * ["token"], "out", "double", "swap", "value", "append"]


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """Return `content` after one to four alterations: cut, flipped bits, removed, doubled, swapped or added parts."""
    altered = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(altered) - 1, 0)))
        end = min(len(altered), place + draw(st.sampled_from([1, 1, 2, 4, 16, 300])))
        match draw(st.sampled_from(CHANGES)):
            case "cut":
                del altered[place:]
            case "flip" if altered:
                altered[place] ^= 1 << draw(st.integers(0, 7))
            case "token":
                altered[place:place] = draw(st.sampled_from(TOKENS))
            case "out":
                del altered[place:end]
            case "double":
                altered[place:place] = altered[place:end]
            case "swap":
                altered[place:end] = altered[place:end][::-1]
            case "value":
                token = draw(st.sampled_from(TOKENS))
                altered[place : place + len(token)] = token
            case "append":
                altered += draw(st.sampled_from(TOKENS)) * draw(st.sampled_from([1, 1, 100]))
    return bytes(altered)


@st.composite
def zipped(draw: st.DrawFn, content: bytes) -> tuple[bytes, bytes | None]:
    """A gzip file of altered content, with the content; or an altered gzip file of `content`, with None."""
    if draw(st.booleans()):
        inside = draw(mutated(content))
        return gzip.compress(inside, 1, mtime=0), inside
    return draw(mutated(gzip.compress(content, 1, mtime=0))), None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("altered")


# IDX


@many
@given(data=st.data())
@pytest.mark.parametrize("shape", [(3, 28, 28), (40,)], ids=["images", "labels"])
def test_idx(shape: tuple[int, ...], folder: Path, data: st.DataObject) -> None:
    write_idx(folder / "whole", torch.arange(np.prod(shape)).remainder(251).to(torch.uint8).reshape(shape))
    content = (folder / "whole").read_bytes()
    packed, inside = data.draw(zipped(content))
    plain = inside is not None and data.draw(st.booleans())
    path = folder / ("altered" if plain else "altered.gz")
    path.write_bytes(inside if plain and inside is not None else packed)
    found = read(lambda: read_idx(path))
    if found is not None:
        right = content if inside is None else inside
        assert tuple(found.shape) == struct.unpack_from(f">{right[3]}I", right, 4)
        assert found.tobytes() == right[4 + 4 * right[3] :]


# WFDB


@many
@given(data=st.data())
def test_wfdb_record(folder: Path, data: st.DataObject) -> None:
    name = "records100/00000/00001_lr"
    hea, dat = folder / f"{name}.hea", folder / f"{name}.dat"
    hea.parent.mkdir(parents=True, exist_ok=True)
    write_record(folder / name, np.random.default_rng(0).integers(-3000, 3000, (12, 1000)).astype(np.int16))
    which = data.draw(st.sampled_from(["hea", "hea", "dat", "both"]))
    for path in [hea] * (which != "dat") + [dat] * (which != "hea"):
        path.write_bytes(data.draw(mutated(path.read_bytes())))
    found = read(lambda: read_signals(folder, [name]))
    if found is not None:
        right = np.frombuffer(dat.read_bytes(), "<i2").reshape(1000, 12).T
        assert np.array_equal(found[0], right)
        lines = hea.read_bytes().decode("ascii", "ignore").splitlines()
        lines = [line for line in lines if line.strip() and line[0] != "#"]
        for lead, line in zip(right, lines[1:13], strict=True):
            numbers = list(map(int, re.findall(r"-?\d+", line, re.ASCII)))
            assert int(lead[0]) in numbers
            assert any((number - int(lead.sum(dtype=np.int64))) % 2**16 == 0 for number in numbers)


# CSVs

STATEMENTS = b""",description,diagnostic,form,diagnostic_class
NORM,normal ECG,1.0,,NORM
IMI,inferior myocardial infarction,1.0,,MI
NDT,non-diagnostic T abnormalities,1.0,1.0,STTC
LVH,left ventricular hypertrophy,1.0,,HYP
SR,sinus rhythm,,,
"""
DATABASE = b"""ecg_id,patient_id,report,scp_codes,strat_fold,filename_lr
1,15709.0,"two\nlines","{'NORM': 100.0, 'SR': 0.0}",3,records100/00000/00001_lr
2,13243,,"{'IMI': 15.0, 'LVH': 50.0}",10,records100/00000/00002_lr
3,15709,,{},3,records100/00000/00003_lr
"""


def naive_database(database: bytes, statements: bytes) -> list[tuple[Any, ...]]:
    classes = {row[""]: row["diagnostic_class"] for row in rows(statements) if row["diagnostic"]}
    found = []
    for row in rows(database):
        named = {classes.get(code) for code in ast.literal_eval(row["scp_codes"])}
        numbers = (int(float(row[column])) for column in ("ecg_id", "patient_id", "strat_fold"))
        found.append((*numbers, *(int(name in named) for name in CLASSES), row["filename_lr"]))
    return found


def rows(content: bytes) -> list[dict[str, str]]:
    head, *body = csv.reader(io.StringIO(content.decode(), newline=""))
    return [dict(zip(head, row, strict=True)) for row in body if row]


@many
@given(data=st.data())
@pytest.mark.parametrize("which", ["ptbxl_database.csv", "scp_statements.csv"])
def test_csv(which: str, folder: Path, data: st.DataObject) -> None:
    content = {"ptbxl_database.csv": DATABASE, "scp_statements.csv": STATEMENTS}
    content[which] = data.draw(mutated(content[which]))
    for name, each in content.items():
        (folder / name).write_bytes(each)
    found = read(lambda: read_database(*(folder / name for name in content)))
    if found is not None:
        assert list(zip(*found.values(), strict=True)) == naive_database(*content.values())


NAMES = [f"records100/00000/0000{number}_lr" for number in (1, 2, 3)]
SIGNALS = np.random.default_rng(0).integers(-3000, 3000, (3, 12, 1000)).astype(np.int16)


@pytest.fixture(scope="module")
def three_records(folder: Path) -> Path:
    for name, signal_of in zip(NAMES, SIGNALS, strict=True):
        (folder / "json" / name).parent.mkdir(parents=True, exist_ok=True)
        write_record(folder / "json" / name, signal_of)
    (folder / "json" / "ptbxl_database.csv").write_bytes(DATABASE)
    (folder / "json" / "scp_statements.csv").write_bytes(STATEMENTS)
    return folder / "json"


@many
@given(altered=mutated(json.dumps({"version": "1.0.3", "records": NAMES}, indent=0).encode()))
def test_records_json(three_records: Path, altered: bytes) -> None:
    raw = {name: three_records / name for name in ("ptbxl_database.csv", "scp_statements.csv", "records.json")}
    outputs = {"signals": three_records / "signals.npy", "records": three_records / "records.csv"}
    raw["records.json"].write_bytes(altered)
    for path in outputs.values():
        path.unlink(missing_ok=True)
    if read(lambda: prepare.run(JobSettings(), raw, outputs, Machine()) or True):
        chosen = [NAMES.index(name) for name in sorted(json.loads(altered)["records"])]
        assert np.array_equal(np.load(outputs["signals"]), SIGNALS[chosen])
        assert pd.read_csv(outputs["records"])["ecg_id"].tolist() == [index + 1 for index in chosen]
    else:
        assert not any(path.exists() for path in outputs.values())


# STRING


def string_links() -> bytes:
    random = np.random.default_rng(0)
    lines = [f"protein1 protein2 {' '.join(CHANNELS)} combined_score"]
    for first in range(8):
        for step in (1, 3):
            scores = random.integers(0, 1000, 8) * (random.random(8) < 0.6)
            second = (first + step) % 8
            lines += [
                f"{TAXON}.P{a} {TAXON}.P{b} {' '.join(map(str, scores))}" for a, b in ((first, second), (second, first))
            ]
    return "\n".join([*lines, ""]).encode()


@many
@given(file=zipped(string_links()))
def test_string_links(folder: Path, file: tuple[bytes, bytes | None]) -> None:
    packed, inside = file
    (folder / "links.gz").write_bytes(packed)
    found = read(lambda: read_links(folder / "links.gz", TAXON, 100))
    if found is not None:
        names = found.proteins
        pairs = {(names[a], names[b]): int(bits) for (a, b), bits in zip(found.edges, found.bits, strict=True)}
        right = naive_links(string_links() if inside is None else inside)
        assert {tuple(sorted(pair)): bits for pair, bits in pairs.items()} == right
        assert list(names) == sorted({name for pair in right for name in pair})


def naive_links(content: bytes) -> dict[tuple[str, ...], int]:
    head, *lines = content.decode().removesuffix("\n").split("\n")
    spelt = {"experimental": "experiments", "cooccurrence": "cooccurence"}
    channels = [name.removesuffix("_transferred") for name in head.split(" ")]
    channels = [spelt.get(name, name) for name in channels]
    found: dict[tuple[str, ...], int] = {}
    for line in lines:
        first, second, *scores = line.split(" ")
        if first != second and int(scores[-1]) >= 100:
            seen = {name for name, score in zip(channels[2:-1], scores[:-1], strict=True) if int(score) > 0}
            bits = sum(1 << CHANNELS.index(name) for name in seen if name in CHANNELS)
            pair = tuple(sorted((first, second)))
            found[pair] = found.get(pair, 0) | bits
    return found


def string_terms() -> bytes:
    lines = ["#string_protein_id\tcategory\tterm\tdescription"]
    for protein in range(8):
        begin = f"{TAXON}.P{protein}\t"
        lines += [f"{begin}Molecular Function (Gene Ontology)\tGO:{term:07d}\tterm {term}" for term in range(protein)]
        lines.append(f"{begin}Reference Publications (PubMed)\tPMID:1\tno such term")
    return "\n".join([*lines, ""]).encode()


@many
@given(file=zipped(string_terms()))
def test_string_terms(folder: Path, file: tuple[bytes, bytes | None]) -> None:
    packed, inside = file
    proteins = np.array([f"{TAXON}.P{protein}" for protein in range(6)], object)
    (folder / "terms.gz").write_bytes(packed)
    found = read(lambda: read_terms(folder / "terms.gz", TAXON, proteins))
    if found is not None:
        pairs = {(proteins[protein], found.terms.index[term]) for protein, term in found.pairs}
        text = (string_terms() if inside is None else inside).decode().removesuffix("\n")
        cells = [line.split("\t") for line in text.split("\n")[1:]]
        chosen = [(cell[0], cell[2]) for cell in cells if "Gene Ontology" in cell[1]]
        assert pairs == {(protein, term) for protein, term in chosen if protein in proteins}
        assert found.proteins == len({protein for protein, _ in chosen})
        assert list(found.terms.index) == sorted({term for _, term in chosen})


# The archive

GRAPHS = archives.draw_graphs(12)
ARCHIVE = archives.dump(archives.as_raw(GRAPHS))


@many
@given(altered=mutated(ARCHIVE))
def test_archive_pt_file(folder: Path, altered: bytes) -> None:
    """Nothing but the checks of its content protects this file."""
    layout, size = layout_of(ARCHIVE)
    (folder / "archive.pt").write_bytes(altered)
    found = read(lambda: read_archive(folder / "archive.pt"))
    if found is not None:
        same_as(found, naive_archive(altered[-size:], layout))


@many
@given(data=st.data())
def test_archive_zip_file(folder: Path, data: st.DataObject) -> None:
    whole, altered = folder / "whole.zip", folder / "altered.zip"
    if not whole.exists():
        archives.zipped(ARCHIVE, whole)
    altered.write_bytes(data.draw(mutated(whole.read_bytes())))
    found = read(lambda: read_archive(altered))
    if found is not None:
        archives.assert_equal(found, read_archive(whole))


def layout_of(content: bytes) -> tuple[list[tuple[str, Tensor]], int]:
    """Return name and description of each tensor, in the order of their items, and the size of these items in bytes."""
    file = io.BytesIO(content)
    *_, saved, keys = (unpickle(file) for _ in range(5))
    tensors = {**saved[0], **{f"slices[{name}]": value for name, value in saved[1].items()}}
    by_key = {each.storage.key: (name, each) for name, each in tensors.items() if isinstance(each, Tensor)}
    return [by_key[key] for key in keys], len(content) - file.tell()


def naive_archive(items: bytes, layout: list[tuple[str, Tensor]]) -> dict[str, Any]:
    found, place = {}, 0
    for name, tensor in layout:
        found[name] = np.frombuffer(items, tensor.storage.dtype, tensor.storage.items, place + 8).reshape(tensor.shape)
        place += 8 + found[name].nbytes
    assert place == len(items)
    return found


def same_as(found: Any, raw: dict[str, Any]) -> None:
    nodes, edges = raw["slices[x]"], raw["slices[edge_index]"]
    assert found.species.tolist() == raw["species_id"].tolist()
    assert found.centre.tolist() == raw["center_node_idx"].tolist()
    assert found.node_offsets.tolist() == nodes.tolist()
    for name, bits, tasks in (("pretrain", found.coarse, found.tasks[0]), ("downstream", found.fine, found.tasks[1])):
        assert unpack(bits, int(tasks)).ravel().tolist() == raw[f"go_target_{name}"].tolist()
    for graph in range(len(nodes) - 1):
        here, mine = slice(edges[graph], edges[graph + 1]), slice(*found.edge_offsets[graph : graph + 2])
        bits = (raw["edge_attr"][here] * 2 ** np.arange(9)).sum(1).astype(int)
        right = {(*pair, bit) for *pair, bit in zip(*raw["edge_index"][:, here].tolist(), bits.tolist(), strict=True)}
        pairs = zip(found.edges[mine].tolist(), found.bits[mine], strict=True)
        assert {(a, b, int(bit)) for (i, j), bit in pairs for a, b in ((i, j), (j, i))} == right


# Sizes are bounded before anything is read.


def test_small_files_that_unpack_to_much(folder: Path) -> None:
    """Half a gigabyte of zeros in half a megabyte of gzip is refused, and is never in memory as a whole."""
    bomb = folder / "bomb.gz"
    with gzip.open(bomb, "wb", 1) as file:
        for _ in range(512):
            file.write(bytes(1 << 20))
    claims = folder / "claims.gz"
    claims.write_bytes(gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 1_000_000, 28, 28)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for call in (
        lambda: read_idx(bomb),
        lambda: read_idx(claims),
        lambda: read_links(bomb, TAXON),
        lambda: read_terms(bomb, TAXON, np.array([], object)),
    ):
        with pytest.raises(MetaptError):
            call()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250_000  # kB
