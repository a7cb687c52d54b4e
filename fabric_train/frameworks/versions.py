"""The versions of frameworks that were tested; no other one is taken over. Pure.

What is hooked is no interface of theirs that they promise to keep. Another version may train on
with another order of things, and no error would say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TESTED = {
    "accelerate": ("1.15.0", "1.16"),
    "deepspeed": ("0.19.8", "0.20"),
    "lightning": ("2.6.6", "2.7"),
    "megatron-core": ("0.16.1", "0.17"),
    "transformers": ("5.24.0", "5.25"),
}
"""Of each: the first version, and the first one after those."""


class UntestedVersionError(RuntimeError):
    """The text says which version of what is here, and which were tested."""


def check_version(name: str, version: str, tested: Mapping[str, tuple[str, str]] = TESTED) -> None:
    """Raises ``UntestedVersionError`` where ``version`` of ``name`` was not tested."""
    first, end = tested[name]
    if not _key(first) <= _key(version) < _key(end):
        raise UntestedVersionError(
            f"{name} {version}: its loop is taken over from version {first} to before {end}, which "
            "were tested"
        )


def _key(version: str) -> tuple[int, ...]:
    """Numbers of a version; what is no number ends it: ``2.7rc1`` counts as 2.7."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
