"""Requests to servers: how long they are waited for, and what their answers mean."""

from __future__ import annotations

import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, urlsplit

import metapt
from metapt.fetching.connections import Connections
from metapt.fetching.failures import Absent, Cut, Failure, NoAnswer, OutOfRange

log = logging.getLogger(__name__)

_TRY_LATER = {408, 425, 429, 500, 502, 503, 504}
_OUT_OF_RANGE = 416
_SMALL = 1 << 26  # bytes; what is read into memory has fewer

_Got = TypeVar("_Got")


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for: seconds without a byte, attempts, and seconds of pause before the second, then doubled."""

    timeout: float = 30.0
    attempts: int = 4
    pause: float = 1.0


PATIENCE = Patience()


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
    headers = _headers()
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(_quoted(url), headers=headers)
    try:
        response: http.client.HTTPResponse = _opener().open(request, timeout=PATIENCE.timeout)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _OUT_OF_RANGE and start:
            raise OutOfRange(f"HTTP {error.code}: does not go on from byte {start}") from error
        raise _refusal(error.code, str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
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
        Absent, NoAnswer: the server refuses, or there is none; Cut: the connection broke.
    """
    try:
        answer = _connections.get(_quoted(url), _headers(), PATIENCE.timeout, _SMALL)
        if answer is None or 300 <= answer[0] < 400:
            with ask(url) as response:
                content = response.read(_SMALL)
                if response.length:
                    raise http.client.IncompleteRead(content, response.length)
                return content
    except http.client.IncompleteRead as error:
        raise Cut(f"cut: got {len(error.partial)} of {len(error.partial) + (error.expected or 0)} bytes") from error
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(_why(error)) from error
    status, reason, content = answer
    if status != http.client.OK:
        raise _refusal(status, reason)
    return content


def _headers() -> dict[str, str]:
    return {"User-Agent": f"metapt/{metapt.__version__}", "Accept-Encoding": "identity"}


def _quoted(url: str) -> str:
    return quote(url, safe="%/:?#[]@!$&'()*+,;=~")


def _refusal(code: int, reason: str) -> Failure:
    kind = NoAnswer if code in _TRY_LATER else Absent
    return kind(f"HTTP {code} {reason}".rstrip())


def _opener() -> urllib.request.OpenerDirector:
    """The standard one follows redirections to ftp as well."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _why(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no answer within {PATIENCE.timeout:g} s"
    return f"no network or no such host: {(isinstance(reason, OSError) and reason.strerror) or reason}"
