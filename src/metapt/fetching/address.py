"""What is written as a place of files: a folder, or an address, with a name and a password in it if need be."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

Place = Path | str
"""A local file or folder, or an http(s) address."""


def place_of(text: str) -> Place:
    """Return the place that a text names.

    Raises:
        ValueError: it is none; the message does not repeat it.
    """
    scheme, separator, _ = text.partition("://")
    if not text.strip() or not text.isprintable():
        raise ValueError("it is empty, or has characters that can't be printed")
    if not separator:
        try:
            return Path(text).expanduser()
        except RuntimeError as error:
            raise ValueError("there is no such user's home") from error
    parts = urlsplit(text)
    if scheme.lower() == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if scheme.lower() in ("http", "https") and parts.hostname and " " not in text:
        _server(text)
        return text
    raise ValueError("legal are a folder, file:///folder, http://host/… and https://host/…")


def requested(url: str) -> tuple[str, dict[str, str]]:
    """Return an http(s) address as it is asked for, in ASCII, without name and password, and the headers that say these.

    >>> requested("https://me:secret@host:8080/a folder/file")
    ('https://host:8080/a%20folder/file', {'Authorization': 'Basic bWU6c2VjcmV0'})

    Raises:
        ValueError: the host or the port is illegal.
    """
    parts = urlsplit(url)
    plain = urlunsplit((parts.scheme, _server(url), *(quote(part, safe="%/:?[]@!$&'()*+,;=~") for part in parts[2:])))
    if parts.username is None:
        return plain, {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return plain, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _server(url: str) -> str:
    """Return host and port as they are asked for."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    if any(letter in name for letter in " %\\<>^`{|}\"'@"):
        raise ValueError(f"the host {name!r} has letters that no host's name has")
    host = f"[{name}]" if ":" in name else name.encode("idna").decode()
    return host if parts.port is None else f"{host}:{parts.port}"
