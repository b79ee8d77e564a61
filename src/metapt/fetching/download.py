"""Stage: fetch the files of a public source from mirrors or from the publisher, resumed, verified, and moved into place whole.

A source has few files, each with its size and sums, or many small ones that a published list of SHA-256 sums describes, or both.
A file without published sums is a gzip or zip file, which is known whole by those in it, and is fetched up to a bound only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from metapt.errors import ConfigError
from metapt.fetching.listed import fetch_listed
from metapt.fetching.places import fetch, listed_places, places, read
from metapt.fetching.source import Source
from metapt.fetching.verify import Wrong

if TYPE_CHECKING:
    from metapt.machine import Machine


def run(config: dict[str, Any], inputs: dict[str, Path], outputs: dict[str, Path], machine: Machine) -> None:
    """Fetch files; one that is there already and whole is left alone.

    Args:
        config: `source`: an entry of sources.yaml; `mirrors`: folders, `file://` or `http(s)://` addresses that are tried first,
            and hold a file either directly or in a folder of the source's name.
        inputs: none.
        outputs: paths of the files that are wanted, which have the names that the source gives them. `records.json` stands for
            all records, whose files come to lie in its folder under their published names; it is written last: `version`, and
            `records`, their sorted names without suffix. It is all of them that an output declares, since Snakemake removes the
            declared outputs of a job that failed, and a later one goes on with what is there.
        machine: not used.

    Raises:
        ConfigError: an illegal address, or a file that the source doesn't have.
        DataError: no place has the file whole.
        MachineError: the places that may have it could not be reached, the disk is full, or the folder can't be written.
    """
    try:
        source = Source.model_validate(config["source"])
    except ValidationError as error:
        raise ConfigError(f"sources.yaml has an illegal entry: {error}") from error
    outputs = {path.name: path for path in outputs.values()}
    mirrors = config["mirrors"]
    candidates = {name: places(name, source, mirrors) for name in outputs}
    unreachable: dict[str, str] = {}

    def content(path: Path, name: str, wrong: Wrong) -> bytes:
        return read(path, listed_places(name, source, mirrors), wrong, unreachable)

    for name in candidates:
        if name in source.files:
            fetch(source.files[name], outputs[name], candidates[name], unreachable)
    if wanted := {name: outputs[name] for name in candidates if name not in source.files}:
        assert source.listed is not None
        fetch_listed(source.listed, source.version, wanted, content)
