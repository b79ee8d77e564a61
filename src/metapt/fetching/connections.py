"""Connections that last over many requests."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from metapt.fetching.failures import Failure


class _Prompt(http.client.HTTPConnection):
    """A connection whose timeout bounds the whole head of an answer as well, which may come byte by byte."""

    def getresponse(self) -> http.client.HTTPResponse:
        late = threading.Event()

        def end() -> None:
            late.set()
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

        watch = threading.Timer(self.timeout or 0, end)
        watch.daemon = True
        watch.start()
        try:
            response = super().getresponse()
        except (OSError, http.client.HTTPException) as error:
            if late.is_set():
                raise TimeoutError from error
            raise
        finally:
            watch.cancel()
        if late.is_set():  # what has come passes for a head
            response.close()
            raise TimeoutError
        return response


class PromptHTTPConnection(_Prompt):
    """A `_Prompt` of http."""


class PromptHTTPSConnection(_Prompt, http.client.HTTPSConnection):
    """A `_Prompt` of https."""


class Connections(threading.local):
    """One connection to each host in each thread that lasts over many requests; only where no proxy stands between."""

    def __init__(self) -> None:
        self._open: dict[str, http.client.HTTPConnection] = {}

    def get(
        self,
        url: str,
        headers: Mapping[str, str],
        timeout: float,
        read: Callable[[http.client.HTTPResponse], bytes],
    ) -> tuple[int, str, bytes] | None:
        """Ask for a small file.

        Args:
            url: quoted.
            headers: of the request.
            timeout: seconds without a byte, and for the head of the answer.
            read: gives the body of the answer, or as much of it as is wanted.

        Returns:
            Status, reason and body; None where it must be asked for in another way: a proxy, or a connection that the host has
            ended meanwhile.

        Raises:
            OSError, http.client.HTTPException: no answer; and what `read` raises.
        """
        parts = urlsplit(url)
        if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.netloc):
            return None
        host = f"{parts.scheme}://{parts.netloc}"
        is_new = host not in self._open
        try:
            if is_new:
                kind = PromptHTTPSConnection if parts.scheme == "https" else PromptHTTPConnection
                self._open[host] = kind(parts.netloc, timeout=timeout)
            connection = self._open[host]
            connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=dict(headers))
            response = connection.getresponse()
            content = read(response)
            if not response.isclosed():  # more follows than is wanted
                self._close(host)
            return response.status, response.reason, content
        except Failure:
            self._close(host)
            raise
        except (OSError, http.client.HTTPException) as error:
            self._close(host)
            if is_new or isinstance(error, http.client.IncompleteRead):
                raise
            return None

    def _close(self, host: str) -> None:
        if connection := self._open.pop(host, None):
            connection.close()
