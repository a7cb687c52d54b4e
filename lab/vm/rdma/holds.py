"""Who keeps what broken, so that the end of one fault is not the end of another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Resource(NamedTuple):
    """One thing that faults break: a cable, a NIC, a device, a host's processes."""

    what: str
    host: int
    rail: int = -1
    """-1: of the whole host."""


class Holds:
    """Holders by resource, in the one process that owns a guest lab.

    Check and change belong together: both happen inside ``locked()``.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: dict[Resource, set[str]] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude all other holders."""
        with self._lock:
            yield

    def take(self, resource: Resource, holder: str) -> bool:
        """Add a hold; whether it is the first, so that the resource is to be broken."""
        held = self._held.setdefault(resource, set())
        first = not held
        held.add(holder)
        return first

    def release(self, resource: Resource, holder: str) -> bool:
        """Drop a hold; whether it was the last, so that the resource is to be repaired."""
        held = self._held.get(resource, set())
        if holder not in held:
            return False
        held.remove(holder)
        return not held

    def held(self, resource: Resource) -> bool:
        """Whether anybody holds it."""
        return bool(self._held.get(resource))
