"""Modules that are imported when a test first uses them, so that collecting tests is quick."""

import importlib
import sys

import pytest


class OnDemand:
    """Stands for a module: reading or setting an attribute imports it and goes there."""

    __slots__ = ("_load",)

    def __init__(self, load):
        object.__setattr__(self, "_load", load)

    def __getattr__(self, attribute):
        if attribute.startswith("__"):  # pytest asks every name of a test module for some of these
            raise AttributeError(attribute)
        return getattr(self._load(), attribute)

    def __setattr__(self, attribute, value):
        setattr(self._load(), attribute, value)


def on_demand(name, *, needs=""):
    """The module of this name; a test that uses it is skipped where ``needs`` is not installed."""
    library = needs or name.partition(".")[0]

    def load():
        if library not in sys.modules:
            pytest.importorskip(library)
        return importlib.import_module(name)

    return OnDemand(load)
