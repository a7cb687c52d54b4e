"""A package's ``PARTS`` and ``MINUTES``, loaded on demand: they import labs and daemons."""

from __future__ import annotations

import importlib
from collections.abc import Callable

NAMES = {"PARTS", "MINUTES"}


def parts(package: str) -> Callable[[str], object]:
    """``__getattr__`` of a package: `NAMES` are those of its module ``parts``.

    So importing one small module of the package loads none of what the parts need.
    """

    def attribute(name: str) -> object:
        if name not in NAMES:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.parts"), name)

    return attribute
