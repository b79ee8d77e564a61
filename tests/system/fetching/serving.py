"""A local server whose answers a test defines, and a source of one file."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from metapt.fetching import Download, run
from metapt.machine import Machine

NAME = "train images.gz"
CONTENT = bytes(range(256)) * 2000
HTML = b"<!DOCTYPE html><title>Please log in</title>"
PATH = "/data/train%20images.gz"

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answer each path as the test's `Server.answers` define."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Range")))
        self.server.answers.get(self.path, status(404))(self)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def reply(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    @property
    def start(self) -> int:
        return int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.broken = 0  # answers that a client did not read to their end
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that were killed."""


def status(code: int) -> Answer:
    return lambda handler: handler.reply(code, b"", Content_Length="0")


def whole(content: bytes = CONTENT) -> Answer:
    """Answer with the whole content, whatever part was requested."""
    return lambda handler: handler.reply(200, content, Content_Length=str(len(content)))


def unsized(content: bytes) -> Answer:
    """Answer with the content without its length, and close the connection at its end."""
    return lambda handler: handler.reply(200, content)


def endless(start: bytes = b"", code: int = 200, **headers: str) -> Answer:
    """Answer with zeros after `start`, without their length, up to 64 MB so that no client fills the disk."""

    def answer(handler: Handler) -> None:
        handler.reply(code, start, **headers)
        try:
            for _ in range(1000):
                handler.wfile.write(bytes(1 << 16))
        except OSError:
            handler.server.broken += 1

    return answer


def ranged(content: bytes = CONTENT, stop: int | None = None) -> Answer:
    """Answer with the requested range; close the connection early, at byte `stop`, if given."""

    def answer(handler: Handler) -> None:
        start = handler.start
        range_of = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.reply(
            206 if start else 200, content[start:stop], Content_Length=str(len(content) - start), Content_Range=range_of
        )

    return answer


def wrong_range(handler: Handler) -> None:
    handler.reply(
        206, CONTENT, Content_Length=str(len(CONTENT)), Content_Range=f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}"
    )


def in_turn(*answers: Answer) -> Answer:
    remaining = list(answers)
    return lambda handler: (remaining.pop(0) if len(remaining) > 1 else remaining[0])(handler)


def hang(handler: Handler) -> None:
    time.sleep(1.5)


def hang_after(size: int) -> Answer:
    def answer(handler: Handler) -> None:
        handler.reply(200, CONTENT[:size], Content_Length=str(len(CONTENT)))
        time.sleep(1.5)

    return answer


def source(*urls: str, content: bytes = CONTENT, own: tuple[str, ...] = ()) -> dict[str, Any]:
    file = {"at_most": len(content), "sha256": hashlib.sha256(content).hexdigest(), "urls": list(own)}
    return {"name": "things", "version": "1", "urls": list(urls), "files": {NAME: file}}


def get(target: Path, entry: dict[str, Any], *mirrors: str) -> None:
    run(Download.model_validate({"source": entry, "mirrors": mirrors}), {}, {NAME: target}, Machine())


def assert_whole(target: Path) -> None:
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for a condition, since the server's side ends a little later than the client's."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
