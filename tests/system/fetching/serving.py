"""A local server whose answers a test defines, and a source of one file."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from metapt.fetching import Download, run
from metapt.machine import Machine

NAME = "train images.gz"
CONTENT = bytes(range(256)) * 2000
SIZE = len(CONTENT)
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
        """Return the first byte that is requested."""
        return int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))

    def wait_for_end(self) -> None:
        """Wait until the client closes the connection."""
        with suppress(OSError):
            self.rfile.read(1)


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


def redirect(location: str) -> Answer:
    return lambda handler: handler.reply(302, b"", Location=location, Content_Length="0")


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
        pour(handler, repeat(bytes(1 << 16), 1000))

    return answer


def trickle(head: bytes, body: bytes) -> Answer:
    """Send `head` at once, and `body` byte by byte, 20 in a second."""
    return lambda handler: pour(handler, chain([head], (bytes([byte]) for byte in body)), 0.05)


def pour(handler: Handler, pieces: Iterable[bytes], pause: float = 0.0) -> None:
    """Send pieces until the client has enough."""
    try:
        for piece in pieces:
            handler.wfile.write(piece)
            time.sleep(pause)
    except OSError:
        handler.server.broken += 1


def ranged(content: bytes = CONTENT, stop: int | None = None) -> Answer:
    """Answer with the requested range; close the connection early, at byte `stop`, if given."""

    def answer(handler: Handler) -> None:
        start = handler.start
        words = {"Content_Length": str(len(content) - start)}
        words["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.reply(206 if start else 200, content[start:stop], **words)

    return answer


def wrong_range(handler: Handler) -> None:
    handler.reply(206, CONTENT, Content_Length=str(SIZE), Content_Range=f"bytes 0-{SIZE - 1}/{SIZE}")


def in_turn(*answers: Answer) -> Answer:
    remaining = list(answers)
    return lambda handler: (remaining.pop(0) if len(remaining) > 1 else remaining[0])(handler)


def hang_after(size: int) -> Answer:
    """Answer with the first bytes, and then with nothing more; not even with a head where `size` is 0."""

    def answer(handler: Handler) -> None:
        if size:
            handler.reply(200, CONTENT[:size], Content_Length=str(SIZE))
        handler.wait_for_end()

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


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
