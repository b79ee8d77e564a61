"""STRING's raw files (https://string-db.org/cgi/download): gzipped text, a file of links and one of terms per species.

A file of links has a line for each direction of each pair of proteins, with columns separated by spaces: two proteins,
the scores of the evidence channels and `combined_score`, all 0 to 1000. A file of terms has a line for each protein and
term, with columns separated by tabs.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from metapt.errors import DataError
from metapt.files import FETCH_AGAIN, reading

CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experiments", "database", "textmining")
"""Evidence channels in the order of an edge's bits: bit i says that channel i has a score above 0.

Transferred evidence (`*_transferred`) counts for its channel. `homology` is no evidence; STRING corrects the other
scores by it.
"""

_SPELLINGS = {"experimental": "experiments", "cooccurrence": "cooccurence"}
_IGNORED = ("homology",)
_PAIR = ["protein1", "protein2"]
_SCORE = "combined_score"
_TERMS = ["#string_protein_id", "category", "term", "description"]
_BLOCK = 1 << 25  # bytes of text that are read at once


@dataclass(frozen=True, eq=False)
class Links:
    """A species' network."""

    proteins: NDArray[np.object_]  # [N] names, sorted, of proteins with a link
    edges: NDArray[np.int64]  # [E, 2] int64, numbers of proteins, the lower one first; sorted, without duplicates
    bits: NDArray[np.uint8]  # [E] uint8, evidence `CHANNELS` of either direction
    read: int  # number of links (lines) in the file
    kept: int  # number of links that reach the score


@dataclass(frozen=True, eq=False)
class Annotations:
    """Which proteins of a network carry which Gene Ontology terms."""

    terms: pd.DataFrame  # index: term, sorted; columns: category, description
    # [P, 2] int64, number of a protein in the network and of a term in `terms`; sorted, without duplicates
    pairs: NDArray[np.int64]
    proteins: int  # number of proteins with such terms, in the network or not


def read_links(path: Path, taxon: int, min_score: int = 0) -> Links:
    """Read a gzipped file of links: `links.detailed`, `links.full` or `physical.links.full`, identified by its header.

    Links of at least `min_score`, of 1000, are kept, without self loops. Raises DataError if the file is missing, cut,
    altered or malformed; a protein belongs to another species than `taxon`; or no link reaches the score.
    """
    ends, bits = [], []
    names: dict[str, int] = {}
    read = kept = 0
    for columns, line, block in _blocks(path, " "):
        channels = _channels(columns, path)
        scores = [column for column in columns if column not in _PAIR]
        table = _parse(path, line, block, columns, scores)
        low, high = table[scores].min(axis=1), table[scores].max(axis=1)
        if (bad := (low < 0) | (high > 1000)).any():
            raise _fault(path, line + int(bad.to_numpy().argmax()), "a score is not 0 to 1000")
        numbers = [_numbers(table[column], names, path, line, taxon) for column in _PAIR]
        chosen = (table[_SCORE].to_numpy() >= min_score) & (numbers[0] != numbers[1])
        evidence = np.zeros(len(table), np.uint8)
        for channel, index in channels.items():
            evidence |= (table[channel].to_numpy() > 0).astype(np.uint8) << np.uint8(index)
        read, kept = read + len(table), kept + int(chosen.sum())
        ends.append(np.stack(numbers, axis=1)[chosen])
        bits.append(evidence[chosen])
    if not read:
        raise DataError(f"{path} has no links: {FETCH_AGAIN}.")
    if not kept:
        least = f"a combined score of at least {min_score}"
        raise DataError(f"{path} has no link with {least}: lower ppi.string.min_score.")
    return _united(list(names), np.concatenate(ends), np.concatenate(bits), read, kept)


def read_terms(path: Path, taxon: int, proteins: NDArray[np.object_]) -> Annotations:
    """Read which of `proteins` [N] (names, sorted) carry which terms of categories whose names contain "Gene Ontology".

    Raises DataError if the file is missing, cut, altered or malformed; a protein belongs to another species than
    `taxon`; or there is no Gene Ontology term.
    """
    tables = []
    names: dict[str, int] = {}
    for columns, line, block in _blocks(path, "\t"):
        if columns != _TERMS:
            raise _fault(path, 1, f"the columns are {', '.join(columns)}, and {', '.join(_TERMS)} are expected")
        table = _parse(path, line, block, columns, [])
        numbers = _numbers(table[_TERMS[0]], names, path, line, taxon)
        if (bad := (table["term"] == "").to_numpy()).any():
            raise _fault(path, line + int(bad.argmax()), "the term is empty")
        chosen = table["category"].str.contains("Gene Ontology", regex=False).to_numpy(bool)
        tables.append(table.loc[chosen, _TERMS[1:]].astype(object).assign(protein=numbers[chosen]))
    if not sum(map(len, tables)):
        raise DataError(f"{path} has no Gene Ontology terms: {FETCH_AGAIN}.")
    table = pd.concat(tables, ignore_index=True)
    terms = table.drop_duplicates("term").sort_values("term").set_index("term")[["category", "description"]]
    place = pd.Index(proteins).get_indexer(pd.Index(list(names), dtype=object))[table["protein"].to_numpy()]
    keys = place.astype(np.int64) * len(terms) + terms.index.get_indexer(pd.Index(table["term"]))
    pairs = np.stack(np.divmod(np.unique(keys[place >= 0]), len(terms)), axis=1)
    return Annotations(terms, pairs, int(table["protein"].nunique()))


def _united(names: list[str], ends: NDArray[np.int64], bits: NDArray[np.uint8], read: int, kept: int) -> Links:
    """Return both directions of each link as one edge, between the proteins with links."""
    used = np.unique(ends)
    linked = np.array(names, object)[used]
    order = np.argsort(linked)
    rank = np.full(len(names), -1)
    rank[used[order]] = np.arange(len(used))
    ends = np.sort(rank[ends], axis=1)
    keys, which = np.unique(ends[:, 0] * len(used) + ends[:, 1], return_inverse=True)
    united = np.zeros(len(keys), np.uint8)
    np.bitwise_or.at(united, which, bits)
    return Links(linked[order], np.stack(np.divmod(keys, len(used)), axis=1), united, read, kept)


def _channels(columns: list[str], path: Path) -> dict[str, int]:
    """Return column -> number of its evidence channel."""
    if columns[:2] != _PAIR or columns[-1] != _SCORE or len(set(columns)) < len(columns):
        raise _fault(path, 1, f"the columns are {' '.join(columns)}, and {' '.join(_PAIR)} ... {_SCORE} are expected")
    channels = {}
    for column in columns[2:-1]:
        name = column.removesuffix("_transferred")
        name = _SPELLINGS.get(name, name)
        if name in CHANNELS:
            channels[column] = CHANNELS.index(name)
        elif name not in _IGNORED:
            raise _fault(path, 1, f"{column!r} is no evidence channel; legal: {', '.join((*CHANNELS, *_IGNORED))}")
    if not channels:
        raise _fault(path, 1, "there is no evidence channel; take the file of links that is called detailed or full")
    return channels


def _blocks(path: Path, separator: str) -> Iterator[tuple[list[str], int, bytes]]:
    """Yield the columns, the number of the first line, and the text of each block of whole lines."""
    with reading(path) as packed, gzip.open(packed) as file:
        header = file.readline(_BLOCK).removeprefix(codecs.BOM_UTF8)
        if not header:
            raise DataError(f"{path} is empty: {FETCH_AGAIN}.")
        columns = header.decode("ascii", "replace").rstrip("\r\n").split(separator)
        line = 2
        while block := file.read(_BLOCK):
            block += file.readline(_BLOCK)
            block += b"" if block.endswith(b"\n") else b"\n"
            block = block.replace(b"\r\n", b"\n")
            yield columns, line, block
            line += block.count(b"\n")
        if line == 2:
            yield columns, line, b""


def _parse(path: Path, line: int, block: bytes, columns: list[str], scores: list[str]) -> pd.DataFrame:
    """Return a block as a table of categories, which are texts, and of int32 for columns in `scores`."""
    separator = b" " if scores else b"\t"
    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text == ord(b"\n"))
    separators = np.searchsorted(np.flatnonzero(text == ord(separator)), ends)
    if (bad := np.diff(separators, prepend=0) != len(columns) - 1).any():  # pandas fills up short lines
        raise _fault(path, line + int(bad.argmax()), f"{len(columns)} columns are expected, as in the header")
    dtypes = {column: "int32" if column in scores else "str" for column in columns}
    texts = {column: "category" for column in columns if column not in scores}
    if not block:
        return pd.DataFrame({column: pd.Series([], dtype=dtype) for column, dtype in dtypes.items()}).astype(texts)
    try:
        return pd.read_csv(
            io.BytesIO(block),
            sep=separator.decode(),
            header=None,
            names=columns,
            index_col=False,
            dtype=dtypes,
            quoting=csv.QUOTE_NONE,
            na_filter=False,
            skip_blank_lines=False,
            lineterminator="\n",
        ).astype(texts)  # read as categories, texts that are all numbers would become numbers
    except (ValueError, OverflowError) as error:
        for number, each in enumerate(block.split(b"\n")[:-1], line):
            values = each.split(separator)[len(columns) - len(scores) :]
            if not all(re.fullmatch(rb"\d{1,9}", value) for value in values):
                raise _fault(path, number, "a score is no whole number") from error
            if each.decode(errors="ignore").encode() != each:
                raise _fault(path, number, "it is no text in UTF-8") from error
        raise _fault(path, line, f"this line or one of the next {len(ends) - 1} can't be read ({error})") from error


def _numbers(column: pd.Series, names: dict[str, int], path: Path, line: int, taxon: int) -> NDArray[np.int64]:
    """Return the number of each protein in `names`, and add new proteins to it."""
    legal = re.compile(rf"{taxon}\.[!-~]+", re.ASCII)
    categories = list(column.cat.categories)
    for index, name in enumerate(categories):
        if name not in names:
            if legal.fullmatch(name) is None:
                row = int((column.cat.codes.to_numpy() == index).argmax())
                raise _fault(path, line + row, f"{name[:80]!r} is no protein of the species {taxon}")
            names[name] = len(names)
    return np.array([names[name] for name in categories], np.int64)[column.cat.codes.to_numpy()]


def _fault(path: Path, line: int, what: str) -> DataError:
    return DataError(f"{path}, line {line}: {what}; {FETCH_AGAIN}.")
