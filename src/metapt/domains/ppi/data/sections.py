"""The settings of the data of protein graphs, and the names of its raw files."""

from __future__ import annotations

from typing import Annotated, Literal

from metapt.sections import Distinct, Positive, Section, Seed, key

Source = Literal["simulated", "string", "hu2020"]
Taxa = Annotated[list[Positive], Distinct]
MOST_NODES = 2**16 - 1
"""Largest number of nodes of a graph, since prepared files have node numbers of 16 bits."""


class Tasks(Section):
    """Which Gene Ontology terms become tasks. The paper gives no default except that of `fine`."""

    fine: Positive = key(40, "number of FT tasks: the deepest or the rarest terms; the others are coarse PT tasks")
    coarse: Positive | None = key(None, "maximal number of PT tasks, the most frequent terms; empty: all others")
    by: Literal["depth", "frequency"] = key(
        "frequency", "criterion for fine terms: a long chain of terms that contain its proteins, or few proteins"
    )
    min_proteins: Positive = key(20, "least number of proteins with a term, in the training and in the test species")


class Ego(Section):
    """The graph around a protein: a breadth-first search in its species' network. No default is in the paper."""

    hops: Positive = key(2, "steps from the centre")
    fan_out: Positive | None = key(20, "maximal number of neighbours that a node adds, drawn at random; empty: all")
    max_nodes: int = key(300, "maximal number of nodes of a graph", ge=1, le=MOST_NODES)
    seed: Seed = key(0, "seed of the draws")


class String(Section):
    """Networks and terms from STRING (string-db.org). The paper gives no default except that of `species`."""

    version: str = key("12.0", "version of STRING, as in the file names", pattern=r"^\d+(\.\d+)*$")
    links: Literal["links.detailed", "links.full", "physical.links.full"] = key(
        "links.detailed", "file of links and their evidence channels"
    )
    species: Taxa = key(
        [9606, 3702, 6239, 511145, 7227, 10090, 4932, 7955],
        "NCBI taxa, by default those of Hu et al. (2020); `test_species` are held out of training",
        min_length=2,
    )
    min_score: int = key(400, "least combined score of a link, of 1000", ge=0, le=1000)
    ego: Ego = Ego()
    tasks: Tasks = Tasks()


SIMULATED = String(version="0", links="links.detailed", species=[900001, 900002, 900003, 900004, 900005])
"""The generated files; the species' numbers are not NCBI taxa."""

ARCHIVE = "bio_dataset.zip"  # the archive of Hu et al. (2020): https://github.com/snap-stanford/pretrain-gnns.


def string_names(string: String) -> list[str]:
    """Return the names of STRING's files: links and terms of each species."""
    return [name for taxon in string.species for name in (links_name(string, taxon), terms_name(string, taxon))]


def links_name(string: String, taxon: int) -> str:
    """Return the name of a species' file of links."""
    return f"{taxon}.protein.{string.links}.v{string.version}.txt.gz"


def terms_name(string: String, taxon: int) -> str:
    """Return the name of a species' file of terms."""
    return f"{taxon}.protein.enrichment.terms.v{string.version}.txt.gz"
