"""Detection: flaps counted, faults seen in time and in the right place, nothing cried out falsely.

Each part makes what it needs. docs/design/measurements.md says how each figure is taken.
"""

from __future__ import annotations

import importlib


def __getattr__(name: str) -> object:
    """``PARTS`` and ``MINUTES``, loaded on demand: they import labs and daemons.

    Importing one small module of this package loads none of them.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in {"PARTS", "MINUTES"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("bench.detect.parts"), name)
