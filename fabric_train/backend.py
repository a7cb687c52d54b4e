"""The backends of a generation's collectives, and what each needs in a rank's environment."""

from __future__ import annotations

from collections.abc import Mapping

from fabric_train.plugin_library import LibraryMissingError, find_collectives, find_plugin

VARIABLE = "FABRIC_TRAIN_BACKEND"
BACKENDS = ("gloo", "plugin")
_INTERFACE = "NCCL_SOCKET_IFNAME"


class BackendError(Exception):
    """There is no such backend, or it lacks a library."""


def chosen(environment: Mapping[str, str]) -> str:
    """The backend that ``environment`` names, or gloo. Raises ``BackendError``."""
    backend = environment.get(VARIABLE) or BACKENDS[0]
    if backend not in BACKENDS:
        raise BackendError(f"{VARIABLE}={backend}: the backends are {', '.join(BACKENDS)}")
    return backend


def environment(
    backend: str | None, inherited: Mapping[str, str], *, standalone: bool
) -> dict[str, str]:
    """What to add to ``inherited`` for the ranks. ``backend`` None: what it names already.

    Ranks of one machine use its loopback unless ``NCCL_SOCKET_IFNAME`` names other devices.
    Raises ``BackendError``.
    """
    name = backend or chosen(inherited)
    added = {VARIABLE: name}
    if name == "plugin":
        try:
            find_collectives(inherited, find_plugin(inherited))
        except LibraryMissingError as error:
            raise BackendError(f"backend {name}: {error}") from None
        if standalone and not inherited.get(_INTERFACE):
            added[_INTERFACE] = "lo"
    return added
