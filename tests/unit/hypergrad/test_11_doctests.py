"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import metapt.hypergrad

MODULES = [module.name for module in pkgutil.walk_packages(metapt.hypergrad.__path__, "metapt.hypergrad.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_print_what_they_say(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    attempted = {name: doctest.testmod(importlib.import_module(name)).attempted for name in MODULES}
    assert attempted["metapt.hypergrad.inverse"] > 0
    assert attempted["metapt.hypergrad.optimizers"] > 0
