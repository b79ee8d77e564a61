"""A file without published sums is verified by the sums in it, and its size is limited."""

from __future__ import annotations

import gzip
import io
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metapt.errors import DataError

from .serving import (
    CONTENT,
    HTML,
    NAME,
    PATH,
    Answer,
    Server,
    assert_whole,
    endless,
    get,
    in_turn,
    ranged,
    source,
    unsized,
    wait_for,
    whole,
    write,
)


def zipped(content: bytes = CONTENT) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a folder/data", content)
    return stream.getvalue()


NOISE = random.Random(0).randbytes(20_000)
CONTAINERS = {"gzip": gzip.compress(NOISE), "zip": zipped(NOISE)}
AT_MOST = 30_000


def container_source(kind: str, *urls: str) -> dict[str, Any]:
    return {**source(*urls), "files": {NAME: {"container": kind, "at_most": AT_MOST}}}


def assert_container(target: Path, kind: str) -> None:
    assert target.read_bytes() == CONTAINERS[kind]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("answer", [whole, unsized, ranged])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_file_without_published_sums(
    server: Server, target: Path, kind: str, answer: Callable[[bytes], Answer]
) -> None:
    server.answers[PATH] = answer(CONTAINERS[kind])
    get(target, container_source(kind, f"{server.url}/data"))
    assert_container(target, kind)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_file_without_published_sums_from_a_folder(target: Path, tmp_path: Path, kind: str) -> None:
    write(tmp_path / "mirror", {f"things/{NAME}": CONTAINERS[kind]})
    write(tmp_path / "cut", {f"things/{NAME}": CONTAINERS[kind][:-100]})
    get(target, container_source(kind), str(tmp_path / "cut"), str(tmp_path / "mirror"))
    assert_container(target, kind)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_file_without_published_sums_is_resumed(server: Server, target: Path, kind: str) -> None:
    server.answers[PATH] = ranged(CONTAINERS[kind], stop=3000)
    with pytest.raises(DataError, match=f"cut: got 3000 of {len(CONTAINERS[kind])} bytes"):
        get(target, container_source(kind, f"{server.url}/data"))
    assert not target.exists()
    server.answers[PATH] = ranged(CONTAINERS[kind])
    get(target, container_source(kind, f"{server.url}/data"))
    assert_container(target, kind)
    assert server.requests[-1] == (PATH, "bytes=3000-")


@pytest.mark.parametrize("kind", CONTAINERS)
def test_file_of_unknown_length_is_resumed(server: Server, target: Path, kind: str) -> None:
    server.answers[PATH] = in_turn(unsized(CONTAINERS[kind][:3000]), ranged(CONTAINERS[kind]))
    get(target, container_source(kind, f"{server.url}/data"))
    assert_container(target, kind)
    assert [asked for _, asked in server.requests] == [None, "bytes=3000-"]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_part_of_another_file_is_given_up(server: Server, target: Path, kind: str) -> None:
    write(target.parent, {f"{NAME}.part": CONTAINERS[kind][:100] + b"?" * 1000})
    server.answers[PATH] = ranged(CONTAINERS[kind])
    get(target, container_source(kind, f"{server.url}/data"))
    assert_container(target, kind)
    assert [asked for _, asked in server.requests] == ["bytes=1100-", None]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("gzip", HTML, "an HTML page"),
        ("zip", HTML, "an HTML page"),
        ("gzip", b"", "cut: it has 0 bytes"),
        ("gzip", b"protein1 protein2", "no gzip file"),
        ("zip", CONTAINERS["gzip"], "no zip file"),
        ("gzip", CONTAINERS["gzip"][:-5], "cut: it ends too early"),
        ("zip", CONTAINERS["zip"][:-50], "cut: it has no directory"),
        ("gzip", CONTAINERS["gzip"][:-8] + bytes(8), "altered: CRC check failed"),
        ("gzip", CONTAINERS["gzip"][:-4] + bytes(4), "altered: Incorrect length"),
        (
            "zip",
            CONTAINERS["zip"].replace(NOISE[100:110], bytes(10)),
            "altered: the checksum (CRC-32) of a folder/data",
        ),
    ],
)
def test_wrong_file_without_published_sums(
    server: Server, target: Path, kind: str, content: bytes, message: str
) -> None:
    server.answers[PATH] = whole(content)
    with pytest.raises(DataError, match=re.escape(message)):
        get(target, container_source(kind, f"{server.url}/data"))
    assert not any(target.parent.glob("*"))


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_one_published_sum_is_enough_to_see_an_altered_file(server: Server, target: Path, kind: str) -> None:
    entry = source(f"{server.url}/data")
    file = entry["files"][NAME]
    entry["files"][NAME] = {"size": file["size"], kind: file[kind]}
    server.answers[PATH] = whole(CONTENT[::-1])
    with pytest.raises(DataError, match=r"altered: its checksum \((SHA-256|MD5)\)"):
        get(target, entry)
    assert not target.exists()
    server.answers[PATH] = whole()
    get(target, entry)
    assert_whole(target)


OVERLONG = {"gzip": gzip.compress(NOISE + NOISE[::-1]), "zip": zipped(NOISE + NOISE[::-1])}


@pytest.mark.parametrize("answer", [whole, unsized, ranged])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_file_that_is_larger_than_its_bound(
    server: Server, target: Path, kind: str, answer: Callable[[bytes], Answer]
) -> None:
    server.answers[PATH] = answer(OVERLONG[kind])
    with pytest.raises(DataError, match=f"overlong: more than {AT_MOST} bytes"):
        get(target, container_source(kind, f"{server.url}/data"))
    assert not any(target.parent.glob("*"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", CONTAINERS)
def test_endless_file_of_unknown_length_is_cut_off(server: Server, target: Path, kind: str) -> None:
    server.answers[PATH] = endless(CONTAINERS[kind])
    with pytest.raises(DataError, match=f"overlong: more than {AT_MOST} bytes"):
        get(target, container_source(kind, f"{server.url}/data"))
    assert not any(target.parent.glob("*"))
    wait_for(lambda: server.broken == 1)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_endless_rest_of_a_part_is_cut_off(server: Server, target: Path, kind: str) -> None:
    write(target.parent, {f"{NAME}.part": CONTAINERS[kind][:1000]})
    server.answers[PATH] = in_turn(endless(code=206, Content_Range="bytes 1000-*/*"), endless(CONTAINERS[kind]))
    with pytest.raises(DataError, match=f"overlong: more than {AT_MOST} bytes"):
        get(target, container_source(kind, f"{server.url}/data"))
    assert not any(target.parent.glob("*"))
    assert [asked for _, asked in server.requests] == ["bytes=1000-", None]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_claimed_length_beyond_the_bound_is_refused_before_a_byte_is_written(
    server: Server, target: Path, kind: str
) -> None:
    write(target.parent, {f"{NAME}.part": CONTAINERS[kind][:1000]})
    server.answers[PATH] = lambda handler: handler.reply(200, CONTAINERS[kind][:5000], Content_Length=str(1 << 60))
    with pytest.raises(DataError, match=f"overlong: more than {AT_MOST} bytes"):
        get(target, container_source(kind, f"{server.url}/data"))
    assert {path.name: path.stat().st_size for path in target.parent.iterdir()} == {f"{NAME}.part": 1000}
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", CONTAINERS)
def test_part_beyond_the_bound_is_not_gone_on_with(server: Server, target: Path, kind: str) -> None:
    write(target.parent, {f"{NAME}.part": CONTAINERS[kind] + bytes(AT_MOST)})
    server.answers[PATH] = ranged(CONTAINERS[kind])
    get(target, container_source(kind, f"{server.url}/data"))
    assert_container(target, kind)
    assert [asked for _, asked in server.requests] == [None]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_larger_file_in_a_folder_is_refused_unread(target: Path, tmp_path: Path, kind: str) -> None:
    write(tmp_path / "mirror", {f"things/{NAME}": OVERLONG[kind][:-5]})  # it is cut, too, which only its end shows
    with pytest.raises(DataError, match=rf"mirror/things/{NAME} \(overlong: more than {AT_MOST} bytes\)"):
        get(target, container_source(kind), str(tmp_path / "mirror"))
    assert not target.parent.exists()


def test_a_part_survives_an_html_page(server: Server, target: Path) -> None:
    write(target.parent, {f"{NAME}.part": CONTAINERS["gzip"][:1000]})
    server.answers[PATH] = unsized(HTML)
    server.answers["/second/train%20images.gz"] = ranged(CONTAINERS["gzip"])
    get(target, container_source("gzip", f"{server.url}/data", f"{server.url}/second"))
    assert_container(target, "gzip")
    assert server.requests == [(PATH, "bytes=1000-"), ("/second/train%20images.gz", "bytes=1000-")]
