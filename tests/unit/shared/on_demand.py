"""Modules that are imported when a test first uses them, so that collecting tests is quick."""

import importlib
import sys

import pytest


class OnDemand:
    """Stands for a module. It is read-only: monkeypatch takes the module's dotted name instead."""

    __slots__ = ("_name", "_needs")

    def __init__(self, name, needs):
        self._name, self._needs = name, needs

    def __getattr__(self, attribute):
        if attribute.startswith("__"):  # pytest asks every name of a test module for some of these
            raise AttributeError(attribute)
        if self._needs not in sys.modules:
            pytest.importorskip(self._needs)
        return getattr(importlib.import_module(self._name), attribute)


def on_demand(name, *, needs=""):
    """The module of this name; a test that uses it is skipped where ``needs`` is not installed."""
    return OnDemand(name, needs or name.partition(".")[0])
