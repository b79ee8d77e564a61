"""A file is fetched completely from a server, however it behaves, or not at all."""

from __future__ import annotations

import base64
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from metapt.config import validate
from metapt.errors import ConfigError, DataError, MachineError
from metapt.execute import execute
from metapt.jobs import Job

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
    wrong_range,
)


def test_good_file(server: Server, target: Path) -> None:
    server.answers[PATH] = whole()
    get(target, source(f"{server.url}/data/"))
    assert_whole(target)
    assert server.requests == [(PATH, None)]


def test_redirection(server: Server, target: Path) -> None:
    server.answers[PATH] = lambda handler: handler.reply(302, b"", Location="/new", Content_Length="0")
    server.answers["/new"] = whole()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,x"])
def test_no_redirection_to_another_kind_of_address(location: str, server: Server, target: Path) -> None:
    server.answers[PATH] = lambda handler: handler.reply(302, b"", Location=location, Content_Length="0")
    with pytest.raises((DataError, MachineError), match="could not be fetched"):
        get(target, source(f"{server.url}/data"))
    assert not any(target.parent.glob("*"))


def asked_for_password(inner: Answer) -> Answer:
    """Answer requests of the user "me" with the password "se/cret" only."""
    pair = base64.b64encode(b"me:se/cret").decode()

    def answer(handler: Handler) -> None:
        (inner if handler.headers.get("Authorization") == f"Basic {pair}" else status(401))(handler)

    return answer


def with_password(server: Server) -> str:
    return server.url.replace("://", "://me:se%2Fcret@")


def test_a_password_in_an_address_works(server: Server, target: Path) -> None:
    server.answers[PATH] = asked_for_password(
        lambda handler: handler.reply(302, b"", Location="/new", Content_Length="0")
    )
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
        server.answers[PATH] = lambda handler: handler.reply(302, b"", Location=f"{other.url}/new", Content_Length="0")
        get(target, source(f"{with_password(server)}/data"))
        other.shutdown()
    assert_whole(target)
    assert seen == [None]


def test_a_password_is_never_printed(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mirrors = [with_password(server), "https://me:se%2Fcret@127.0.0.1:1/x"]
    config = {"source": source(), "mirrors": mirrors}
    job = Job(
        stage="download",
        name=NAME,
        entry="fetching.download",
        config=config,
        outputs={"file": str(tmp_path / NAME)},
        record=str(tmp_path / "run.json"),
        log=str(tmp_path / "log.txt"),
    )
    assert execute(job) == 1
    printed = capfd.readouterr()
    told = printed.out + printed.err + (tmp_path / "log.txt").read_text() + (tmp_path / "run.json").read_text()
    assert "could not be fetched: http://***@127.0.0.1" in told
    assert "cret" not in told
    with pytest.raises(ConfigError) as error:
        validate({"data": {"mirrors": mirrors[0]}})
    assert "cret" not in str(error.value)
    with pytest.raises(ConfigError) as error:
        validate({"data": {"mirrors": ["https://me:secret@[::1"]}})
    assert "cret" not in str(error.value)


@pytest.mark.parametrize(
    "address", ["http://a..b/x", "http://[::1/x", "http://host:port/x", "http://a b/x", "http://a%b/", ""]
)
def test_an_odd_address_is_one_sentence(address: str, target: Path) -> None:
    with pytest.raises(ConfigError, match=r"in data\.mirrors is illegal: "):
        get(target, source(), address)


def test_a_redirection_to_an_odd_host(server: Server, target: Path) -> None:
    server.answers[PATH] = lambda handler: handler.reply(302, b"", Location="http://a..b/file", Content_Length="0")
    with pytest.raises(MachineError, match="could not be fetched"):
        get(target, source(f"{server.url}/data"))


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


@pytest.mark.parametrize("slow", ["head", "body"])
def test_a_server_of_a_few_bytes_a_second_is_given_up(slow: str, server: Server, target: Path) -> None:
    head = f"HTTP/1.0 200 OK\r\nContent-Length: {len(CONTENT)}\r\n\r\n".encode()
    server.answers[PATH] = trickle(b"", head * 10) if slow == "head" else trickle(head, CONTENT)
    began = time.monotonic()
    with pytest.raises(
        MachineError if slow == "head" else DataError, match="no answer within" if slow == "head" else "too slow: "
    ):
        get(target, source(f"{server.url}/data"))
    assert time.monotonic() - began < 20  # the whole would take hours, one head 12 s in each attempt


def test_a_proxy_is_asked_instead_of_the_server(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", server.url)
    server.answers[f"http://publisher.invalid{PATH}"] = whole()
    get(target, source("http://publisher.invalid/data"))
    assert_whole(target)


def test_a_socks_proxy_that_does_not_answer_is_one_sentence(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("all_proxy", f"socks5://127.0.0.1:{closed_port()}")
    with pytest.raises(MachineError, match="no network or no such host: Connection refused"):
        get(target, source("http://publisher.invalid/data"))


def test_an_endless_refusal_is_not_read_to_its_end(server: Server, target: Path) -> None:
    server.answers[PATH] = endless(code=404)
    server.answers["/second/train%20images.gz"] = endless(code=302, Location="/new")
    server.answers["/new"] = whole()
    get(target, source(f"{server.url}/data", f"{server.url}/second"))
    assert_whole(target)
    wait_for(lambda: server.broken == 2)


def test_redirections_that_never_end(server: Server, target: Path) -> None:
    server.answers[PATH] = lambda handler: handler.reply(302, b"", Location=PATH, Content_Length="0")
    with pytest.raises(DataError, match="too many redirections"):
        get(target, source(f"{server.url}/data"))


def test_cut_connection_is_resumed(server: Server, target: Path) -> None:
    server.answers[PATH] = in_turn(ranged(stop=1000), ranged(stop=5000), ranged())
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert [asked for _, asked in server.requests] == [None, "bytes=1000-", "bytes=5000-"]


def test_a_later_run_goes_on(server: Server, target: Path) -> None:
    server.answers[PATH] = ranged(stop=3000)
    with pytest.raises(DataError, match=f"cut: got 3000 of {len(CONTENT)} bytes"):
        get(target, source(f"{server.url}/data"))
    assert not target.exists()
    server.answers[PATH] = ranged()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert server.requests[-1] == (PATH, "bytes=3000-")


def test_standstill_is_resumed(server: Server, target: Path) -> None:
    server.answers[PATH] = in_turn(hang_after(2000), ranged())
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert server.requests[-1] == (PATH, "bytes=2000-")


@pytest.mark.parametrize("second", [whole(), wrong_range, status(416)])
def test_server_that_can_not_resume(server: Server, target: Path, second: Answer) -> None:
    server.answers[PATH] = in_turn(ranged(stop=1000), second, whole())
    get(target, source(f"{server.url}/data"))
    assert_whole(target)


def test_a_wrong_part_is_given_up(server: Server, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.with_name(f"{NAME}.part").write_bytes(b"?" * 1000)
    server.answers[PATH] = ranged()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)
    assert [asked for _, asked in server.requests] == ["bytes=1000-", None]


def test_a_part_as_long_as_the_file_is_not_taken_for_it(server: Server, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.with_name(f"{NAME}.part").write_bytes(b"?" * len(CONTENT))
    server.answers[PATH] = ranged()
    get(target, source(f"{server.url}/data"))
    assert_whole(target)


def test_a_part_survives_an_answer_that_is_something_else(server: Server, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.with_name(f"{NAME}.part").write_bytes(CONTENT[:1000])
    server.answers[PATH] = whole(HTML)
    server.answers["/second/train%20images.gz"] = ranged()
    get(target, source(f"{server.url}/data", f"{server.url}/second"))
    assert_whole(target)
    assert server.requests == [(PATH, "bytes=1000-"), ("/second/train%20images.gz", "bytes=1000-")]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (whole(CONTENT[: len(CONTENT) // 2]), f"cut: got {len(CONTENT) // 2} of {len(CONTENT)} bytes"),
        (ranged(stop=len(CONTENT) // 2), f"cut: got {len(CONTENT) // 2} of {len(CONTENT)} bytes"),
        (unsized(CONTENT[:10]), f"cut: got 10 of {len(CONTENT)} bytes"),
        (whole(CONTENT + b"more"), f"overlong: more than {len(CONTENT)} bytes"),
        (unsized(CONTENT + b"more"), f"overlong: more than {len(CONTENT)} bytes"),
        (whole(CONTENT[::-1]), r"altered: its checksum \(SHA-256\) is"),
        (whole(HTML), "an HTML page"),
        (status(404), "HTTP 404 Not Found"),
        (status(403), "HTTP 403 Forbidden"),
    ],
)
def test_wrong_answers(server: Server, target: Path, answer: Answer, message: str) -> None:
    server.answers[PATH] = answer
    with pytest.raises(DataError, match=message) as raised:
        get(target, source(f"{server.url}/data"))
    assert str(raised.value).startswith(f"{NAME} could not be fetched: {server.url}{PATH} (")
    assert str(raised.value).endswith(f"data.mirrors in the config, or put the file at {target} by hand.")
    assert not target.exists()


def test_endless_answer_is_not_read_to_its_end(server: Server, target: Path) -> None:
    server.answers[PATH] = endless()
    with pytest.raises(DataError, match="overlong"):
        get(target, source(f"{server.url}/data"))
    assert not any(target.parent.glob("*"))
    wait_for(lambda: server.broken == 1)


@pytest.mark.parametrize(
    ("answer", "message"), [(hang, "no answer within 0.3 s"), (status(503), "HTTP 503 Service Unavailable")]
)
def test_server_out_of_order(server: Server, target: Path, answer: Answer, message: str) -> None:
    server.answers[PATH] = answer
    with pytest.raises(MachineError, match=message):
        get(target, source(f"{server.url}/data"))
    assert len(server.requests) == 3


def test_an_attempt_more_helps(server: Server, target: Path) -> None:
    server.answers[PATH] = in_turn(status(503), hang, whole())
    get(target, source(f"{server.url}/data"))
    assert_whole(target)


def test_no_network(target: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(MachineError, match=r"no network or no such host: Connection refused\)\. Name a folder"):
        get(target, source(url))


def test_full_disk(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers[PATH] = whole()
    plain_open = Path.open

    class Full:
        def __init__(self, path: Path) -> None:
            path.touch()

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, _: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_(path: Path, mode: str = "r", *arguments: Any) -> Any:
        return Full(path) if path.name.endswith(".part") else plain_open(path, mode, *arguments)

    monkeypatch.setattr(Path, "open", open_)
    with pytest.raises(MachineError, match=r"because the disk is full or a quota is used up: it needs 512\.0 kB"):
        get(target, source(f"{server.url}/data"))
    assert not any(target.parent.glob("*"))
