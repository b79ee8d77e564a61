"""The record of a job: changes of the record and of the job's files are detected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metapt.engine import records
from metapt.errors import DataError
from metapt.files import sha256


def made(folder: Path, *names: str, record: str = "run.json") -> Path:
    """Write files and the record of a job that has made them, and return the first file."""
    for name in names:
        (folder / name).write_text(f"content of {name}")
    outputs = {f"output {number}": f"elsewhere/{name}" for number, name in enumerate(names)}
    sums = {key: sha256(folder / Path(path).name) for key, path in outputs.items()}
    whole: dict[str, Any] = {"outputs": outputs, "sha256": {"inputs": {}, "outputs": sums}, "wall_time_s": 0.1}
    records.write(folder / record, whole)
    return folder / names[0]


def tried(function: Callable[[Path], Any], path: Path) -> tuple[Any, str]:
    """Return the result of a function on a file, and the sentence of its DataError."""
    try:
        return function(path), ""
    except DataError as error:
        return None, str(error)


def test_a_file_that_is_whole_is_known_by_its_name_wherever_the_folder_lies(tmp_path: Path) -> None:
    path = made(tmp_path, "pretrained.pt", "metrics.csv")
    assert records.checked(path) == records.content(path) == sha256(path)
    assert records.producer(path) == (tmp_path / "run.json", sha256(path))


def test_an_unfinished_record_of_a_killed_job_says_nothing(tmp_path: Path) -> None:
    made(tmp_path, "metrics.csv", record=".1a2b3c4d.run.json")
    (tmp_path / "metrics.csv").write_text("of the next attempt")
    assert records.producer(tmp_path / "metrics.csv") is None
    path = tmp_path / "metrics.csv"
    records.write(
        tmp_path / "run.json",
        {"outputs": {"metrics": str(path)}, "sha256": {"inputs": {}, "outputs": {"metrics": sha256(path)}}},
    )
    assert records.checked(path) == sha256(path)


def test_an_address_with_a_password_is_no_change_of_the_settings(tmp_path: Path) -> None:
    config = {"source": {"urls": ["https://me:secret@host/file"]}}
    done = {"state": "done", "config": config, "code": None, "outputs": {}, "sha256": {"inputs": {}, "outputs": {}}}
    records.write(tmp_path / "run.json", done)
    assert "secret" not in (tmp_path / "run.json").read_text()
    assert records.stale(tmp_path / "run.json", config, None, {}) is None
    other = {"source": {"urls": ["https://me:secret@host/other"]}}
    assert records.stale(tmp_path / "run.json", other, None, {}) == "its settings have changed"


def test_jobs_that_share_a_folder_have_records_of_their_own(tmp_path: Path) -> None:
    table, views = made(tmp_path, "metrics.csv"), made(tmp_path, "views.metrics.csv", record="views.run.json")
    assert records.producer(table) == (tmp_path / "run.json", sha256(table))
    assert records.producer(views) == (tmp_path / "views.run.json", sha256(views))
    (tmp_path / "run.json").write_text("{")
    assert records.checked(views) == sha256(views), "another job's record is none of its business"
    with pytest.raises(
        DataError, match=r"whether .*/metrics\.csv is what its job left can't be told: .*/run\.json is not the"
    ):
        records.checked(table)


def test_every_bit_of_a_small_file_counts(tmp_path: Path) -> None:
    path = made(tmp_path, "metrics.csv")
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            with pytest.raises(DataError, match=r"metrics\.csv is not what its job left: .* in .*run\.json"):
                records.checked(path)
        path.write_bytes(content[:place])
        with pytest.raises(DataError, match=r"metrics\.csv is not what its job left: .* in .*run\.json"):
            records.checked(path)


def test_a_record_that_is_cut_or_altered_is_said_or_means_the_same(tmp_path: Path) -> None:
    path = made(tmp_path, "metrics.csv")
    record = tmp_path / "run.json"
    content, whole = record.read_bytes(), records.read(record)
    refused = 0
    for place in range(len(content)):
        for altered in (content[:place], content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]):
            record.write_bytes(altered)
            found, error = tried(records.read, record)
            assert found == whole or str(record) in error
            refused += bool(error)
            found, error = tried(records.checked, path)
            assert found in (sha256(path), None)
            assert not error or (str(record) in error and str(path) in error)
    assert refused > 1.5 * len(content)


def test_a_record_is_an_input_too(tmp_path: Path) -> None:
    made(tmp_path, "metrics.csv")
    record = tmp_path / "run.json"
    first = records.checked(record)
    assert first is not None
    assert records.content(record) == first
    record.write_text(record.read_text().replace("0.1", "0.2"))
    with pytest.raises(DataError, match=r"run\.json has been altered since its job wrote it"):
        records.checked(record)


@pytest.mark.parametrize(
    "content", [None, '{"outputs": {"a": "metrics.csv"}, "state": "done"}'], ids=["none", "without sums"]
)
def test_no_record_is_no_answer(content: str | None, tmp_path: Path) -> None:
    path = made(tmp_path, "metrics.csv")
    (tmp_path / "run.json").unlink()
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert records.checked(path) is None
    assert records.content(path) == sha256(path)
