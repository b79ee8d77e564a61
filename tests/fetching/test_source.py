"""Entries of sources.yaml are legal, and illegal ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from metapt.errors import ConfigError
from metapt.fetching.source import SOURCES, Source

from .serving import NAME, get, source


@pytest.mark.parametrize(
    "change",
    [
        {"md5": "abc"},
        {"size": -1},
        {"size": None},
        {"sha256": None, "md5": None},
        {"container": "gzip"},
        {"at_most": 1000},
        {"size": None, "sha256": None, "md5": None, "container": "tar", "at_most": 1000},
        {"size": None, "sha256": None, "md5": None, "container": "gzip"},
        {"size": None, "sha256": None, "md5": None, "container": "gzip", "at_most": 0},
        {"size": None, "sha256": None, "md5": None, "at_most": 1000},
        {"other": 1},
    ],
)
def test_illegal_entry(target: Path, change: dict[str, object]) -> None:
    entry = source()
    entry["files"][NAME].update(change)
    with pytest.raises(ConfigError, match=r"sources\.yaml has an illegal entry"):
        get(target, entry)


def test_sources_yaml_describes_every_file() -> None:
    entries = yaml.safe_load(SOURCES.read_text(encoding="utf-8"))
    for key, entry in entries.items():
        parsed = Source.model_validate(entry)
        assert parsed.name == key
        assert parsed.names
        for name in parsed.names:
            assert parsed.places(name, [])
