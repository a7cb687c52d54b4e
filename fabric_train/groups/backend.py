"""The backends of a generation's collectives, and what each needs in a rank's environment."""

from __future__ import annotations

from collections.abc import Mapping

from fabric_train.groups.plugin_library import LibraryMissingError, find_collectives, find_plugin

VARIABLE = "FABRIC_TRAIN_BACKEND"
BACKENDS = ("gloo", "plugin", "nccl")
_INTERFACE = "NCCL_SOCKET_IFNAME"
_NCCL = {
    # A lost peer is ours to handle: torch's watchdogs would end this process for it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # else each end after a loss waits 15 s for a record of it
    # NCCL 2.28 and 2.29 unload a network plugin with the last communicator and forget its name
    # (plugin/net.cc, ncclNetPluginUnload), so that the next generation would be without.
    "NCCL_NET_PLUGIN_REF_COUNT": "1",
}


class BackendError(Exception):
    """There is no such backend, or it lacks a library."""


def network(environment: Mapping[str, str]) -> str:
    """Over which network the collectives run: ``rails``, or ``agents``, that of their addresses."""
    return "agents" if chosen(environment) == "gloo" else "rails"


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
    if name == "nccl":
        added |= {name: value for name, value in _NCCL.items() if name not in inherited}
    if name == "plugin":
        try:
            find_collectives(inherited, find_plugin(inherited))
        except LibraryMissingError as error:
            raise BackendError(f"backend {name}: {error}") from None
        if standalone and not inherited.get(_INTERFACE):
            added[_INTERFACE] = "lo"
    return added
