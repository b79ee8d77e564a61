"""Requests to servers and folders: time limits, retries, and the meaning of refusals."""

from __future__ import annotations

import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import httpx
import tenacity

import metapt
from metapt.fetching import Absent, Cut, Failure, NoAnswer
from metapt.fetching.source import Place
from metapt.files import regular

log = logging.getLogger(__name__)

_PART, _TRY_LATER = 206, {408, 425, 429, 500, 502, 503, 504}
_HEADERS = {"User-Agent": f"metapt/{metapt.__version__}", "Accept-Encoding": "identity"}


class Patience(NamedTuple):
    """Time limits and retries of requests to a server."""

    timeout: float = 30.0  # seconds without a byte, and for the whole head of a response
    attempts: int = 4
    pause: float = 1.0  # seconds before the second attempt; doubled before each later one
    rate: float = 100.0  # least bytes per second in each period of `timeout` seconds


PATIENCE = Patience()


class Answer(NamedTuple):
    """The bytes of a file from `start` on, and the size of the whole file if the place gives it."""

    start: int
    size: int | None
    chunks: Iterator[bytes]


class Web(ExitStack):
    """Open places. Each thread has its own httpx client, whose connections last until the context ends."""

    def __init__(self) -> None:
        super().__init__()
        self._thread, self._ssl = threading.local(), ssl.create_default_context()
        self._deadlines: dict[Any, float] = {}  # by client that waits for the head of a response
        self._unreachable: dict[str, str] = {}  # host -> error
        self._over = threading.Event()
        self.callback(self._over.set)
        threading.Thread(target=self._end_late_heads, daemon=True).start()
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((NoAnswer, Cut)),
            stop=tenacity.stop_after_attempt(PATIENCE.attempts),
            wait=tenacity.wait_exponential(PATIENCE.pause),
            before_sleep=lambda state: log.info(
                "%s: %s; it is asked again", state.args[0], state.outcome and state.outcome.exception()
            ),
            reraise=True,
        )

    def patiently(self, attempt: Callable[[Place], None], place: Place) -> None:
        """Call `attempt(place)`, and repeat it a few times if a server gave no answer or only a part.

        A server that has not answered in all attempts is not asked again. Raises the Failure of the last attempt.
        """
        host = urlsplit(str(place)).netloc
        if host in self._unreachable:
            raise NoAnswer(self._unreachable[host])
        try:
            self._retrying(attempt, place)
        except NoAnswer as failure:
            self._unreachable[host] = str(failure)
            raise

    @contextmanager
    def open(self, place: Place, start: int) -> Iterator[Answer]:
        """Request the file at `place` once, from byte `start` on; a server may send it from its first byte on.

        Raises Failure if the file is not there or can't be read, or the server does not answer; also while the chunks
        are read.
        """
        if isinstance(place, Path):
            try:
                with open(place, "rb", opener=regular) as file:
                    file.seek(start)
                    yield Answer(start, place.stat().st_size, _pieces(file))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise Absent("no such file") from error
            except OSError as error:
                raise _unreadable(error) from error
        else:
            with closing(self._ask(place, start)) as response:
                start = start if response.status_code == _PART else 0
                length = response.headers.get("Content-Length")
                yield Answer(start, None if length is None else start + int(length), _chunks(response))

    def _ask(self, url: str, start: int) -> httpx.Response:
        """Return a response with the file, from its first byte on if the server can't continue from `start`."""
        client = getattr(self._thread, "client", None)
        deadline = time.monotonic() + PATIENCE.timeout
        try:
            if client is None or client.is_closed:
                client = self.enter_context(httpx.Client(headers=_HEADERS, timeout=PATIENCE.timeout, verify=self._ssl))
                self._thread.client = client
            self._deadlines[client] = deadline
            request = client.build_request("GET", url, headers={"Range": f"bytes={start}-"} if start else None)
            for _ in range(10):
                response = client.send(request, stream=True)
                code, part = response.status_code, response.headers.get("Content-Range", "")
                if part.startswith(f"bytes {start}-") if code == _PART else response.is_success:
                    return response
                with closing(response), suppress(httpx.HTTPError):  # reads the short text to keep the connection
                    list(islice(response.iter_raw(), 4))
                if start and code in (_PART, 416):
                    return self._ask(url, 0)
                if response.next_request is None:
                    raise (NoAnswer if code in _TRY_LATER else Absent)(f"HTTP {code} {response.reason_phrase}".rstrip())
                request = response.next_request
            raise Absent("too many redirections")
        # httpx raises ValueError for malformed hosts, and RuntimeError if the client is closed.
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RuntimeError) as error:
            if isinstance(error, httpx.TimeoutException) or time.monotonic() >= deadline:
                raise NoAnswer(f"no answer within {PATIENCE.timeout:g} s") from error
            raise NoAnswer(f"no network or no such host: {re.sub(r'^.Errno -?[0-9]+. ', '', str(error))}") from error
        finally:
            self._deadlines.pop(client, None)

    def _end_late_heads(self) -> None:
        """Close clients that receive the head of a response byte by byte; their own timeout applies to each read."""
        while not self._over.wait(PATIENCE.timeout / 4):
            for client, deadline in list(self._deadlines.items()):
                if time.monotonic() >= deadline:
                    client.close()


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a file; what goes wrong is the place's fault, not that of the file they are written to."""
    try:
        while piece := file.read(1 << 18):
            yield piece
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> Failure:
    return Failure(f"can't be read: {error.strerror}")


def _chunks(response: httpx.Response) -> Iterator[bytes]:
    """Yield the bytes of the response until the connection ends."""
    since, got = time.monotonic(), 0
    try:
        for chunk in response.iter_raw():
            yield chunk
            got += len(chunk)
            if (elapsed := time.monotonic() - since) >= PATIENCE.timeout:
                if got < PATIENCE.rate * elapsed:
                    raise Cut(f"too slow: {got} bytes in {elapsed:.1f} s")
                since, got = time.monotonic(), 0
    except httpx.TimeoutException as error:
        raise NoAnswer(f"no answer within {PATIENCE.timeout:g} s") from error
    except httpx.HTTPError as error:
        log.info("the connection broke: %s", error)
