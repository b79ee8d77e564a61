"""Generate files in STRING's form: protein networks of several species whose terms have known causes.

A network is drawn from a degree-corrected stochastic block model (Karrer and Newman, Phys. Rev. E 83:016107, 2011) with
overlapping blocks, the communities: a protein is in one or two of them. A community's signature says which evidence
channels its links tend to have. All species draw their communities from the same signatures.

A cause is whether the signature has an odd number of certain channels. No sum of evidence shows a cause, so that an
encoder has to learn it. The causes of the first four channels determine the fine terms, each by all of them, and the
useful coarse terms, each by one or two. Irrelevant coarse terms have the causes of the other channels. These are
independent of the first, and compete for the capacity of a small encoder. Noise terms have no cause. A term's
description names its kind.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metapt.domains.ppi.data.sections import SIMULATED, links_name, terms_name
from metapt.files import atomic_path
from metapt.machine import Machine
from metapt.sections import SimulateSettings

PROTEINS = 300
SEED = 0
CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database", "textmining")
CAUSES = ((0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (4, 5, 6))
"""Sets of channels. A cause is true if the signature has an odd number of its channels."""
SHARED = 3  # number of causes, the first ones, that fine terms have

_CATEGORY = "Biological Process (Gene Ontology)"
_COMMUNITIES = 32  # communities of a species
_BOTH = 0.25  # share of proteins in a second community
_DEGREE, _STRAY = 15, 0.2  # links of a protein (fewer in full communities), and the share between communities
_ACTIVITY = 0.4  # standard deviation of the log of a protein's factor of its degree
_PRESENT, _ABSENT = 0.65, 0.15  # probability of a channel in the signature, and of another one
_WEAK = 0.1  # ratio of links with weak evidence to the others
_SCORES, _WEAK_SCORES = (420, 960), (150, 380)  # ranges of a channel's score, of 1000
_PRIOR = 0.041  # STRING's prior for unrelated proteins
_ERROR = 0.1  # share of wrong annotations, for terms with errors
_COMPLETE = (0, 1)  # causes whose terms have no errors
_NOISE_TERMS, _NOISE = 16, (0.3, 0.5)  # number of noise terms, and the range of their frequencies

Planted = Literal["target", "useful", "irrelevant", "noise"]


@dataclass(frozen=True)
class Term:
    """A generated Gene Ontology term, carried by proteins whose causes have all of the given values."""

    planted: Planted  # its use for the fine terms
    causes: tuple[tuple[int, bool], ...] = ()  # numbers in `CAUSES`, and their values
    error: float = 0.0  # share of proteins whose annotation is random (with one cause) or missing (with several)


def _terms() -> list[Term]:
    useful, irrelevant = range(SHARED), range(SHARED, len(CAUSES))
    equal, both = ((False, False), (True, True)), tuple(product((False, True), repeat=2))
    return [
        *(Term("target", tuple(enumerate(values)), _ERROR) for values in product((False, True), repeat=SHARED)),
        *_single("useful", useful),
        *_pairs("useful", useful, equal),
        *_single("irrelevant", irrelevant),
        *_single("irrelevant", irrelevant),
        *_pairs("irrelevant", irrelevant, both),
        *(Term("noise") for _ in range(_NOISE_TERMS)),
    ]


def _single(planted: Planted, causes: range) -> list[Term]:
    return [Term(planted, ((cause, value),), _ERROR) for cause in causes for value in (False, True)]


def _pairs(planted: Planted, causes: range, values: Sequence[tuple[bool, ...]]) -> list[Term]:
    """Return terms with two causes.

    Terms with the causes of `_COMPLETE` miss no protein, and are annotated like ancestors in the ontology. The
    annotations thus show that they are related to the fine terms with the same two values. The other useful terms are
    as closely related, but the annotations do not show it.
    """
    return [
        Term(planted, tuple(zip(pair, value, strict=True)), 0.0 if pair == _COMPLETE else _ERROR)
        for pair in combinations(causes, 2)
        for value in values
    ]


TERMS = _terms()


@dataclass(frozen=True)
class Species:
    """A generated network of n proteins, and its true causes."""

    edges: NDArray[np.int64]  # [links, 2], numbers of proteins, the lower one first
    scores: NDArray[np.int64]  # [links, 7], of the `CHANNELS`, of 1000; 0: no evidence
    causes: NDArray[np.bool_]  # [n, causes], of each protein's (first) community
    labels: NDArray[np.bool_]  # [n, terms], as in `TERMS`


def run(settings: SimulateSettings, inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Write networks and terms of five species of 300 proteins each, in STRING's form, by `string_names(SIMULATED)`."""
    write(generate(PROTEINS, SEED), outputs)


def write(species: dict[int, Species], outputs: dict[str, Path]) -> None:
    """Write species, by taxon, as `run` does; the same species give the same bytes."""
    for taxon, each in species.items():
        _write(outputs[links_name(SIMULATED, taxon)], _links(taxon, each))
        _write(outputs[terms_name(SIMULATED, taxon)], _annotations(taxon, each))


def generate(proteins: int, seed: int) -> dict[int, Species]:
    """Return generated species, by taxon, of `proteins` proteins each; the same arguments give the same species."""
    rng = np.random.default_rng(seed)
    frequency = rng.uniform(*_NOISE, len(TERMS))
    return {taxon: _species(rng, proteins, frequency) for taxon in SIMULATED.species}


def combined(scores: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return STRING's combined score [links] of the channels' scores [links, 7]: one minus the chance that all err."""
    each = np.maximum(scores / 1000 - _PRIOR, 0) / (1 - _PRIOR)
    total: NDArray[np.int64] = np.floor(1000 * (1 - (1 - _PRIOR) * (1 - each).prod(axis=1))).astype(np.int64)
    return total


def _species(rng: np.random.Generator, proteins: int, frequency: NDArray[np.float64]) -> Species:
    signatures = _signatures(rng)
    causes = np.stack([signatures[:, list(channels)].sum(axis=1) % 2 == 1 for channels in CAUSES], axis=1)
    first = rng.permutation(np.arange(proteins) % _COMMUNITIES)
    second = np.where(rng.random(proteins) < _BOTH, rng.integers(_COMMUNITIES, size=proteins), first)
    edges, scores = _network(rng, signatures, first, second)
    return Species(edges, scores, causes[first], _labels(rng, causes[first], frequency))


def _signatures(rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return channels [communities, 7] such that each other cause is independent of all shared causes together.

    Four communities have the same shared causes: two signatures of the first four channels, and their complements.
    Among these four, channel 5 is constant (it is set in half of all communities), and channels 4 and 6 take all four
    combinations.
    """
    group, member = np.divmod(np.arange(_COMMUNITIES), 4)
    shared = np.where(member % 2, 15 - group, group)
    ends = rng.permuted(np.tile(np.arange(4), (_COMMUNITIES // 4, 1)), axis=1).ravel()
    middle = rng.permutation(_COMMUNITIES // 4)[group] % 2
    code = shared + 16 * (ends % 2) + 32 * middle + 64 * (ends // 2)
    present: NDArray[np.bool_] = (code[:, None] >> np.arange(len(CHANNELS))) % 2 == 1
    return present


def _network(
    rng: np.random.Generator, signatures: NDArray[np.bool_], first: NDArray[np.int64], second: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return links and their scores, for proteins in these communities."""
    proteins = len(first)
    member = np.zeros((proteins, _COMMUNITIES), bool)
    member[np.arange(proteins), first] = member[np.arange(proteins), second] = True
    activity = np.exp(_ACTIVITY * rng.standard_normal(proteins))
    one, other = np.triu_indices(proteins, 1)
    inside = (member[one] & member[other]).any(axis=1)
    rate = activity[one] * activity[other]
    for where, share in ((inside, 1 - _STRAY), (~inside, _STRAY)):
        rate[where] *= share * _DEGREE * proteins / 2 / rate[where].sum()
    linked = rng.random(len(rate)) < 1 - np.exp(-rate)
    edges = np.stack([one[linked], other[linked]], axis=1)

    # A link is evidence of one community: one that both proteins are in, or any.
    likely = rng.random((len(edges), _COMMUNITIES)) + (member[edges[:, 0]] & member[edges[:, 1]])
    evidence = rng.random((len(edges), len(CHANNELS))) < np.where(signatures[likely.argmax(axis=1)], _PRESENT, _ABSENT)
    bare = np.flatnonzero(~evidence.any(axis=1))
    evidence[bare, rng.integers(len(CHANNELS), size=len(bare))] = True
    scores = evidence * rng.integers(*_SCORES, size=evidence.shape)

    unlinked = rng.choice(np.flatnonzero(~linked), int(_WEAK * len(edges)), replace=False)
    weak = np.zeros((len(unlinked), len(CHANNELS)), np.int64)
    weak[np.arange(len(weak)), rng.integers(len(CHANNELS), size=len(weak))] = rng.integers(
        *_WEAK_SCORES, size=len(weak)
    )
    pairs = np.stack([one[unlinked], other[unlinked]], axis=1)
    return np.concatenate([edges, pairs]), np.concatenate([scores, weak])


def _labels(rng: np.random.Generator, causes: NDArray[np.bool_], frequency: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which protein carries which term [n, terms]; `frequency` gives the frequencies of noise terms."""
    columns = []
    for number, term in enumerate(TERMS):
        wrong, drawn = rng.random((2, len(causes)))
        if not term.causes:
            columns.append(drawn < frequency[number])
            continue
        true = np.array([causes[:, cause] == value for cause, value in term.causes]).all(axis=0)
        columns.append(np.where(wrong < term.error, (drawn < 0.5) & (len(term.causes) == 1), true))
    return np.stack(columns, axis=1)


def _links(taxon: int, species: Species) -> Iterator[str]:
    """Yield the lines of the file of links, each link in both directions, sorted by protein."""
    yield " ".join(["protein1", "protein2", *CHANNELS, "combined_score"])
    pairs = np.concatenate([species.edges, species.edges[:, ::-1]])
    values = np.tile(np.column_stack([species.scores, combined(species.scores)]), (2, 1))
    for row in np.lexsort(pairs.T[::-1]):
        yield " ".join([_name(taxon, pairs[row, 0]), _name(taxon, pairs[row, 1]), *map(str, values[row])])


def _annotations(taxon: int, species: Species) -> Iterator[str]:
    """Yield the lines of the file of terms."""
    yield "\t".join(["#string_protein_id", "category", "term", "description"])
    for protein, term in np.argwhere(species.labels):
        words = f"GO:{9000000 + term:07d}", f"planted: {TERMS[term].planted}"
        yield "\t".join([_name(taxon, protein), _CATEGORY, *words])


def _name(taxon: int, protein: int) -> str:
    return f"{taxon}.P{protein + 1:04d}"


def _write(path: Path, lines: Iterator[str]) -> None:
    with atomic_path(path) as temporary:
        text = "".join(f"{line}\n" for line in lines)
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
