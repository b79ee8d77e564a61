"""The domains. A new domain is a package in `metapt.domains` and one line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from metapt.engine.domain import Domain

DOMAINS = (
    "mnist",
    "ecg",
    "ppi",
)


@cache
def domain(name: str) -> Domain:
    """Return the record of a domain."""
    found: Domain = import_module(f"metapt.domains.{name}.domain").DOMAIN
    return found
