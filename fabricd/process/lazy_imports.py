"""Keeps out of the daemon's memory what it never uses. Imported first by `fabricd.daemon`.

``import pyroute2`` loads all of the library, 8 MB of it for tools and protocols that nobody here
asks for, and structlog takes rich along to colour tracebacks, 3 MB. Nothing is taken away: the rest
of pyroute2 comes when something asks for it, and rich can be imported afterwards.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def by_parts(name: str) -> None:
    """Make a package importable by its submodules without running its own ``__init__``.

    Whatever is asked of the package itself that is no submodule runs it after all.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return  # Whoever needs it will say that it is missing.
    loader, module = spec.loader, importlib.util.module_from_spec(spec)

    def ask(attribute: str) -> Any:  # noqa: ANN401 - PEP 562
        if not attribute.startswith("__"):
            try:
                return importlib.import_module(f"{name}.{attribute}")
            except ModuleNotFoundError as error:
                if error.name != f"{name}.{attribute}":
                    raise
        if module.__dict__.pop("__getattr__", None) is not None:
            loader.exec_module(module)
            return getattr(module, attribute)
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    module.__dict__["__getattr__"] = ask
    sys.modules[name] = module


def without(package: str, wanted_by: str) -> None:
    """Import ``wanted_by`` as if ``package``, which it can do without, were not installed."""
    if wanted_by in sys.modules or package in sys.modules:
        return
    absent: dict[str, ModuleType | None] = {package: None}
    sys.modules.update(absent)  # type: ignore[arg-type]  # None: "not to be imported"
    try:
        importlib.import_module(wanted_by)
    finally:
        sys.modules.pop(package, None)


by_parts("pyroute2")
without("rich", wanted_by="structlog")
