"""A mirror on this machine that serves files as it is told, well or badly."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler", bytes], None]

HTML = b"<!DOCTYPE html><title>Please log in</title>"


class Handler(BaseHTTPRequestHandler):
    """Answers with `Server.files` in the manner of `Server.answer`."""

    server: Server

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if name not in self.server.files:
            self.reply(404, b"")
            return
        self.server.ranges.append(self.headers.get("Range"))
        self.server.answer(self, self.server.files[name])

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def reply(self, code: int, body: bytes, length: int | None = None, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
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
        self.files: dict[str, bytes] = {}
        self.answer: Answer = well
        self.ranges: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Killed clients are no news."""


def well(handler: Handler, content: bytes) -> None:
    start = handler.start
    if start:
        handler.reply(206, content[start:], Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}")
    else:
        handler.reply(200, content)


def slowly(handler: Handler, content: bytes) -> None:
    """In ten pieces, a hundredth of a second apart."""
    start = handler.start
    left = content[start:]
    headers = {"Content_Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
    handler.reply(206 if start else 200, b"", length=len(left), **headers)
    step = max(1, len(content) // 10)
    for place in range(0, len(left), step):
        handler.wfile.write(left[place : place + step])
        handler.wfile.flush()
        time.sleep(0.01)


def hangs(handler: Handler, content: bytes) -> None:
    time.sleep(2)


def hangs_halfway(handler: Handler, content: bytes) -> None:
    handler.reply(200, content[: len(content) // 2], length=len(content))
    time.sleep(2)


def resets(handler: Handler, content: bytes) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def resets_halfway(handler: Handler, content: bytes) -> None:
    handler.reply(200, content[: len(content) // 2], length=len(content))
    handler.wfile.flush()
    resets(handler, content)


def sends_half(handler: Handler, content: bytes) -> None:
    handler.reply(200, content[: len(content) // 2])


def sends_half_and_ends(handler: Handler, content: bytes) -> None:
    handler.reply(200, content[: len(content) // 2], length=len(content))


def sends_wrong_bytes(handler: Handler, content: bytes) -> None:
    middle = len(content) // 2
    handler.reply(200, content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


def sends_too_much(handler: Handler, content: bytes) -> None:
    handler.reply(200, content + b"\0" * 100)


def never_ends(handler: Handler, content: bytes) -> None:
    """Send zeros after the content, without their length, up to 64 MB: a client without a bound fills no disk."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(content)
    for _ in range(1000):
        handler.wfile.write(bytes(1 << 16))


def sends_html(handler: Handler, content: bytes) -> None:
    handler.reply(200, HTML)


def is_out_of_order(handler: Handler, content: bytes) -> None:
    handler.reply(503, b"")


FAULTS: tuple[Answer, ...] = (
    hangs,
    hangs_halfway,
    resets,
    resets_halfway,
    sends_half,
    sends_half_and_ends,
    sends_wrong_bytes,
    sends_too_much,
    sends_html,
    is_out_of_order,
)
