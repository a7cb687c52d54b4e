"""Does something to a module as soon as it is imported, whoever imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

Act = Callable[[ModuleType], None]


def on_import(acts: Mapping[str, Act]) -> None:
    """Call each of ``acts`` with the module of its name, at once or when that is imported."""
    waiting = {}
    for name, act in acts.items():
        if name in sys.modules:
            act(sys.modules[name])
        else:
            waiting[name] = act
    sys.meta_path.insert(0, _Finder(waiting))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, acts: dict[str, Act]) -> None:
        self._acts = acts

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """That of the other finders, with a loader that acts."""
        act = self._acts.pop(fullname, None)
        if act is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, act)
        return spec


class _Loader(importlib.abc.Loader):
    """Another one's, and then the act."""

    def __init__(self, loader: Any, act: Act) -> None:
        self._loader = loader
        self._act = act

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the other one does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """As the other one does."""
        self._loader.exec_module(module)
        self._act(module)
