"""Fabric time: on real packets beside ptp4l and chronyd, in virtual time, and the clock page.

`bench.clock.clos` has the fabric and where its parameters come from.
"""

from __future__ import annotations

import importlib


def __getattr__(name: str) -> object:
    """``PARTS`` and ``MINUTES``, loaded on demand: they import labs, daemons and pictures.

    Importing one small module of this package loads none of them.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in {"PARTS", "MINUTES"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("bench.clock.parts"), name)
