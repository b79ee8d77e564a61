"""Names of the raw files of protein graphs; does not import torch."""

from __future__ import annotations

from metapt.domains.ppi.config import PpiSettings
from metapt.domains.ppi.data.sections import SIMULATED, String

ARCHIVE = "bio_dataset.zip"  # the archive of Hu et al. (2020): https://github.com/snap-stanford/pretrain-gnns.


def names(ppi: PpiSettings) -> list[str]:
    """Return the names of the raw files within their folder."""
    return [ARCHIVE] if ppi.source == "hu2020" else string_names(string_of(ppi))


def string_of(ppi: PpiSettings) -> String:
    """Return the section `string` with the files of the source; generated files have their own species."""
    if ppi.source != "simulated":
        return ppi.string
    files = {key: getattr(SIMULATED, key) for key in ("version", "links", "species")}
    return ppi.string.model_copy(update=files)


def string_names(string: String) -> list[str]:
    """Return the names of STRING's files: links and terms of each species."""
    return [name for taxon in string.species for name in (links_name(string, taxon), terms_name(string, taxon))]


def links_name(string: String, taxon: int) -> str:
    """Return the name of a species' file of links."""
    return f"{taxon}.protein.{string.links}.v{string.version}.txt.gz"


def terms_name(string: String, taxon: int) -> str:
    """Return the name of a species' file of terms."""
    return f"{taxon}.protein.enrichment.terms.v{string.version}.txt.gz"
