"""A file is fetched completely from a server, however it behaves, or not at all."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metapt.engine.config import validate
from metapt.engine.execute import execute
from metapt.engine.jobs import Job
from metapt.errors import ConfigError, DataError, MachineError

from .serving import (
    CONTENT,
    HTML,
    NAME,
    PATH,
    Answer,
    Handler,
    Server,
    assert_whole,
    closed_port,
    endless,
    get,
    hang,
    hang_after,
    in_turn,
    ranged,
    source,
    status,
    unsized,
    wait_for,
    whole,
    write,
    wrong_range,
)

SIZE = len(CONTENT)


def redirect(location: str) -> Answer:
    return lambda handler: handler.reply(302, b"", Location=location, Content_Length="0")


def trickle(head: bytes, body: bytes) -> Answer:
    """Send `head` at once, and `body` byte by byte, 50 in a second."""

    def answer(handler: Handler) -> None:
        handler.wfile.write(head)
        try:
            for byte in body:
                handler.wfile.write(bytes([byte]))
                time.sleep(0.02)
        except OSError:
            handler.server.broken += 1

    return answer


HEAD = f"HTTP/1.0 200 OK\r\nContent-Length: {SIZE}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([whole()], [None]),
        ([redirect(PATH), whole()], [None, None]),
        ([unsized(CONTENT)], [None]),
        ([ranged(stop=1000), ranged(stop=5000), ranged()], [None, 1000, 5000]),
        ([hang_after(2000), ranged()], [None, 2000]),
        ([unsized(CONTENT[:3000]), ranged()], [None, 3000]),
        ([ranged(stop=1000), whole()], [None, 1000]),
        ([ranged(stop=1000), wrong_range, whole()], [None, 1000, None]),
        ([ranged(stop=1000), status(416), whole()], [None, 1000, None]),
        ([status(503), hang, whole()], [None, None, None]),
    ],
)
def test_the_file_comes(server: Server, target: Path, answers: list[Answer], asked: list[int | None]) -> None:
    server.answers[PATH] = in_turn(*answers)
    get(target, source(f"{server.url}/data/"))
    assert_whole(target)
    assert server.requests == [(PATH, start and f"bytes={start}-") for start in asked]


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        (CONTENT[:3000], ["bytes=3000-"]),
        (b"?" * 1000, ["bytes=1000-", None]),
        (b"?" * SIZE, [None]),
        (b"?" * (SIZE + 1), [None]),
    ],
)
def test_a_part_of_an_earlier_run(server: Server, target: Path, part: bytes, asked: list[str | None]) -> None:
    """It is gone on with; where that gives another file, or it is too long, the file is fetched from the start."""
    write(target.parent, {f"{NAME}.part": part})
    server.answers[PATH] = ranged()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert [start for _, start in server.requests] == asked


@pytest.mark.parametrize("answer", [whole(HTML), unsized(HTML), whole(CONTENT + b"more"), status(404)])
def test_a_part_survives_an_answer_that_is_something_else(server: Server, target: Path, answer: Answer) -> None:
    write(target.parent, {f"{NAME}.part": CONTENT[:1000]})
    server.answers |= {PATH: answer, "/second/train%20images.gz": ranged()}
    get(target, source(f"{server.url}/data", f"{server.url}/second"))
    assert_whole(target)
    assert server.requests == [(PATH, "bytes=1000-"), ("/second/train%20images.gz", "bytes=1000-")]


OVERLONG = f"overlong: more than {SIZE} bytes"


@pytest.mark.parametrize(
    ("answer", "message", "left", "count"),
    [
        (whole(CONTENT[: SIZE // 2]), r"cut or altered: its SHA-256 is [0-9a-f]{12}…", None, 1),
        (ranged(stop=SIZE // 2), f"cut: got {SIZE // 2} of {SIZE} bytes", SIZE // 2, 3),
        (unsized(CONTENT[:10]), "cut or altered: its SHA-256 is", 10, 3),
        (whole(CONTENT[::-1]), "cut or altered: its SHA-256 is", None, 1),
        (whole(CONTENT + b"more"), OVERLONG, None, 1),
        (unsized(CONTENT + b"more"), OVERLONG, None, 1),
        (endless(), OVERLONG, None, 1),
        (lambda handler: handler.reply(200, CONTENT, Content_Length=str(1 << 60)), OVERLONG, None, 1),
        (whole(HTML), "an HTML page", None, 1),
        (status(404), "HTTP 404 Not Found", None, 1),
        (status(403), "HTTP 403 Forbidden", None, 1),
        (redirect(PATH), "too many redirections", None, 10),
        (trickle(HEAD, CONTENT), "too slow: ", None, 3),
    ],
)
def test_wrong_answers(
    server: Server, target: Path, answer: Answer, message: str, left: int | None, count: int
) -> None:
    server.answers[PATH] = answer
    began = time.monotonic()
    with pytest.raises(DataError, match=message) as raised:
        get(target, source(f"{server.url}/data"))
    assert time.monotonic() - began < 20  # a slow body would take hours
    assert str(raised.value).startswith(f"{NAME} could not be fetched: {server.url}{PATH} (")
    assert str(raised.value).endswith(f"data.mirrors in the config, or put the file at {target} by hand.")
    assert not target.exists()
    parts = [path.stat().st_size for path in target.parent.glob("*")]
    assert parts == ([] if left is None else [left]) or "slow" in message
    assert len(server.requests) == count


@pytest.mark.parametrize(
    ("answer", "message", "count"),
    [
        (hang, "no answer within 0.7 s", 3),
        (trickle(b"", HEAD * 10), "no answer within 0.7 s", 3),
        (status(503), "HTTP 503 Service Unavailable", 3),
        (redirect("http://a..b/file"), "no network or no such host: ", 3),
        (redirect("file:///etc/passwd"), "could not be fetched", 3),
        (redirect("ftp://127.0.0.1/x"), "could not be fetched", 3),
        (redirect("data:text/plain,x"), "could not be fetched", 3),
    ],
)
def test_server_out_of_order(server: Server, target: Path, answer: Answer, message: str, count: int) -> None:
    server.answers[PATH] = answer
    with pytest.raises(MachineError, match=message):
        get(target, source(f"{server.url}/data"))
    assert len(server.requests) == count
    assert not any(target.parent.glob("*"))


def test_endless_answers_are_not_read_to_their_end(server: Server, target: Path) -> None:
    """Neither files, also behind a part, nor refusals and redirections."""
    write(target.parent, {f"{NAME}.part": CONTENT[:1000]})
    server.answers[PATH] = in_turn(endless(code=206, Content_Range="bytes 1000-*/*"), endless(CONTENT))
    server.answers["/second/train%20images.gz"] = endless(code=404)
    server.answers["/third/train%20images.gz"] = endless(code=302, Location="/new")
    server.answers["/new"] = whole()
    get(target, source(*(f"{server.url}/{folder}" for folder in ("data", "second", "third"))))
    assert_whole(target)
    assert [start for _, start in server.requests] == ["bytes=1000-", None, None, None, None]
    wait_for(lambda: server.broken == 4)


def asked_for_password(inner: Answer) -> Answer:
    """Answer requests of the user "me" with the password "se/cret" only."""
    pair = base64.b64encode(b"me:se/cret").decode()

    def answer(handler: Handler) -> None:
        (inner if handler.headers.get("Authorization") == f"Basic {pair}" else status(401))(handler)

    return answer


def with_password(server: Server) -> str:
    return server.url.replace("://", "://me:se%2Fcret@")


def test_a_password_in_an_address_works(server: Server, target: Path) -> None:
    server.answers[PATH] = asked_for_password(redirect("/new"))
    server.answers["/new"] = asked_for_password(in_turn(ranged(stop=1000), ranged()))
    with pytest.raises(DataError, match="HTTP 401"):
        get(target, source(f"{server.url}/data"))
    get(target, source(f"{with_password(server)}/data"))
    assert_whole(target)


def test_a_password_is_not_told_to_another_server(server: Server, target: Path) -> None:
    seen: list[str | None] = []
    with Server() as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        other.answers["/new"] = lambda handler: (seen.append(handler.headers.get("Authorization")), whole()(handler))[1]
        server.answers[PATH] = redirect(f"{other.url}/new")
        get(target, source(f"{with_password(server)}/data"))
        other.shutdown()
    assert_whole(target)
    assert seen == [None]


def test_a_password_is_never_printed(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mirrors = [with_password(server), "https://me:se%2Fcret@127.0.0.1:1/x"]
    outputs, record, log = {"file": str(tmp_path / NAME)}, str(tmp_path / "run.json"), str(tmp_path / "log.txt")
    config = {"source": source(), "mirrors": mirrors}
    assert execute(Job("download", NAME, "fetching", config, outputs=outputs, record=record, log=log)) == 1
    printed = capfd.readouterr()
    told = printed.out + printed.err + Path(log).read_text() + Path(record).read_text()
    assert "could not be fetched: http://***@127.0.0.1" in told
    assert "cret" not in told
    for illegal in (mirrors[0], ["https://me:se%2Fcret@[::1"]):
        with pytest.raises(ConfigError) as error:
            validate({"data": {"mirrors": illegal}})
        assert "cret" not in str(error.value)


def test_a_proxy_is_asked_instead_of_the_server(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", server.url)
    server.answers[f"http://publisher.invalid{PATH}"] = whole()
    get(target, source("http://publisher.invalid/data"))
    assert_whole(target)


@pytest.mark.parametrize("proxy", [False, True])
def test_no_network(target: Path, monkeypatch: pytest.MonkeyPatch, proxy: bool) -> None:
    """Each host is waited for once, whatever the number of its places."""
    asked: list[Any] = []
    plain = asyncio.BaseEventLoop.create_connection
    counted: Callable[..., Any] = lambda *words, **named: (asked.append(words), plain(*words, **named))[1]  # noqa: E731
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", counted)
    url = f"http://127.0.0.1:{closed_port()}"
    if proxy:
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("all_proxy", url.replace("http", "socks5"))
    with pytest.raises(MachineError, match=r"\(no network or no such host: Connect call failed .*\)\. Name a"):
        get(target, source(url), url)
    assert len(asked) == 3


def test_full_disk(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers[PATH] = whole()
    plain = Path.open

    def full(path: Path, mode: str = "r", *arguments: Any) -> Any:
        opened = plain(path, mode, *arguments)
        if path.name.endswith(".part"):
            opened.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(MachineError, match=r"because the disk is full or a quota is used up: it needs 512\.0 kB"):
        get(target, source(f"{server.url}/data"))
    assert not any(target.parent.glob("*"))
