"""Connections that last over many requests."""

from __future__ import annotations

import http.client
import threading
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit


class Connections(threading.local):
    """One connection to each host in each thread that lasts over many requests; only where no proxy stands between."""

    def __init__(self) -> None:
        self._open: dict[str, http.client.HTTPConnection] = {}

    def get(self, url: str, headers: Mapping[str, str], timeout: float, limit: int) -> tuple[int, str, bytes] | None:
        """Ask for a small file.

        Args:
            url: quoted.
            headers: of the request.
            timeout: seconds without a byte.
            limit: bytes after which no more is read.

        Returns:
            Status, reason and body; None where it must be asked for in another way: a proxy, or a connection that the host has
            ended meanwhile.

        Raises:
            OSError, http.client.HTTPException: no answer; IncompleteRead: the connection broke within the body.
        """
        parts = urlsplit(url)
        if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.netloc):
            return None
        host = f"{parts.scheme}://{parts.netloc}"
        is_new = host not in self._open
        try:
            if is_new:
                kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
                self._open[host] = kind(parts.netloc, timeout=timeout)
            connection = self._open[host]
            connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=dict(headers))
            response = connection.getresponse()
            content = response.read(limit)
            if response.length:
                raise http.client.IncompleteRead(content, response.length)
            if not response.isclosed():  # more follows than is wanted
                self._close(host)
            return response.status, response.reason, content
        except (OSError, http.client.HTTPException) as error:
            self._close(host)
            if is_new or isinstance(error, http.client.IncompleteRead):
                raise
            return None

    def _close(self, host: str) -> None:
        if connection := self._open.pop(host, None):
            connection.close()
