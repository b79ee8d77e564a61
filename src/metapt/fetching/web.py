"""Requests to servers: how long they are waited for, and what their answers mean."""

from __future__ import annotations

import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import metapt
from metapt.fetching.address import requested
from metapt.fetching.connections import Connections, PromptHTTPConnection, PromptHTTPSConnection
from metapt.fetching.failures import Absent, Cut, Failure, NoAnswer, OutOfRange

log = logging.getLogger(__name__)

_TRY_LATER = {408, 425, 429, 500, 502, 503, 504}
_OUT_OF_RANGE = 416
_CHUNK = 1 << 18
_SMALL = 1 << 26  # bytes; what is read into memory has fewer

_Got = TypeVar("_Got")


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for.

    Attributes:
        timeout: seconds without a byte, and seconds for the whole head of an answer.
        attempts: how often a file is asked for.
        pause: seconds before the second attempt, then doubled.
        rate: bytes per second, at least, in each period of `timeout` seconds.
    """

    timeout: float = 30.0
    attempts: int = 4
    pause: float = 1.0
    rate: float = 100.0


PATIENCE = Patience()


class Pace:
    """How fast the bytes of one answer come."""

    def __init__(self) -> None:
        self._since, self._bytes = time.monotonic(), 0

    def check(self, count: int) -> None:
        """Take note of `count` more bytes; raises Cut if too few came in the last period."""
        self._bytes += count
        elapsed = time.monotonic() - self._since
        if elapsed >= PATIENCE.timeout:
            if self._bytes < PATIENCE.rate * elapsed:
                raise Cut(f"too slow: {self._bytes} bytes in {elapsed:.1f} s")
            self._since, self._bytes = time.monotonic(), 0


def patiently(url: str, unreachable: dict[str, str], get: Callable[[], _Got]) -> _Got:
    """What `get` returns, in a few attempts; a host that did not answer to all of them is not asked again.

    Args:
        url: what is asked for.
        unreachable: host -> what was wrong; grows.
        get: one attempt; another may mend its `Cut` or `NoAnswer`.

    Raises:
        Failure: that of the last attempt.
    """
    host = urlsplit(url).netloc
    if host in unreachable:
        raise NoAnswer(unreachable[host])
    for attempt in range(1, PATIENCE.attempts + 1):
        try:
            return get()
        except (NoAnswer, Cut) as failure:
            if attempt == PATIENCE.attempts:
                if isinstance(failure, NoAnswer):
                    unreachable[host] = str(failure)
                raise
            log.info("%s: %s; attempt %d of %d", url, failure, attempt, PATIENCE.attempts)
        time.sleep(PATIENCE.pause * 2 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")


def ask(url: str, start: int = 0) -> http.client.HTTPResponse:
    """Ask once for what lies at `url`, from byte `start` on.

    Raises:
        Absent, NoAnswer: the server refuses, or there is none; OutOfRange: it can't begin at `start`.
    """
    try:
        plain, secret = requested(url)
        request = urllib.request.Request(plain, headers=_headers())
        for name, value in secret.items():
            request.add_unredirected_header(name, value)  # another host must not see it
        if start:
            request.add_header("Range", f"bytes={start}-")
        response: http.client.HTTPResponse = _opener().open(request, timeout=PATIENCE.timeout)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _OUT_OF_RANGE and start:
            raise OutOfRange(f"HTTP {error.code}: does not go on from byte {start}") from error
        raise _refusal(error.code, str(error.reason)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # a ValueError: of the host that a redirection names
        raise NoAnswer(_why(error)) from error


def read(response: http.client.HTTPResponse, size: int) -> bytes:
    """What has come, up to `size` bytes; nothing once the connection has ended or stands still."""
    try:
        return response.read1(size)
    except (OSError, http.client.HTTPException) as error:
        log.info("the connection broke: %s", _why(error))
        return b""


_connections = Connections()


def read_small(url: str) -> bytes:
    """Ask once for a small file, whose content is read into memory, over a connection that lasts where there can be one.

    Raises:
        Absent, NoAnswer: the server refuses, or there is none; Cut: the connection broke, or is too slow.
    """
    try:
        plain, secret = requested(url)
        answer = _connections.get(plain, _headers() | secret, PATIENCE.timeout, _content)
        if answer is None or 300 <= answer[0] < 400:
            with ask(url) as response:
                return _content(response)
    except http.client.IncompleteRead as error:
        raise Cut(f"cut: got {len(error.partial)} of {len(error.partial) + (error.expected or 0)} bytes") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(_why(error)) from error
    status, reason, content = answer
    if status != http.client.OK:
        raise _refusal(status, reason)
    return content


def _content(response: http.client.HTTPResponse) -> bytes:
    """Return what has come, up to a bound; raises IncompleteRead if the connection broke within it, Cut if it is too slow."""
    parts, size, pace = [], 0, Pace()
    while size < _SMALL and (part := response.read1(min(_CHUNK, _SMALL - size))):
        parts.append(part)
        size += len(part)
        pace.check(len(part))
    content = b"".join(parts)
    if response.length == 0:
        response.close()  # of the answer; the connection lasts
    if response.length and size < _SMALL:
        raise http.client.IncompleteRead(content, response.length)
    return content


def _headers() -> dict[str, str]:
    return {"User-Agent": f"metapt/{metapt.__version__}", "Accept-Encoding": "identity"}


def _refusal(code: int, reason: str) -> Failure:
    kind = NoAnswer if code in _TRY_LATER else Absent
    return kind(f"HTTP {code} {reason}".rstrip())


class _HTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(PromptHTTPConnection, req)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(PromptHTTPSConnection, req)


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    """One that says name and password again to the same server."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]:
            for name, value in req.unredirected_hdrs.items():
                if name == "Authorization":
                    new.add_unredirected_header(name, value)
        return new


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener that follows no redirection to ftp, as the standard one does."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        _HTTPHandler,
        _HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        _RedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _why(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no answer within {PATIENCE.timeout:g} s"
    return f"no network or no such host: {(isinstance(reason, OSError) and reason.strerror) or reason}"
