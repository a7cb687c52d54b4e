"""The libraries of lab/native, in front of a process's own calls of the C library."""

from __future__ import annotations

from collections.abc import Mapping

from lab.lifecycle.registry import LabError
from lab.node import SANITIZER_ENV, build_dir


def preload(name: str) -> Mapping[str, str]:
    """What a process has to be started with so that ``lib{name}.so`` comes first.

    Raises:
        LabError: it is not built.
    """
    library = build_dir() / "lab" / "native" / f"lib{name}.so"
    if not library.exists():
        raise LabError(f"no {library}; build it: ./run build {build_dir().name}")
    # AddressSanitizer wants to be first; the library leaves it its own interceptors.
    asan = SANITIZER_ENV["ASAN_OPTIONS"] + ":verify_asan_link_order=0"
    return {"LD_PRELOAD": str(library), "ASAN_OPTIONS": asan}
