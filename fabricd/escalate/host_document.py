"""Who this host is and where its links are: the data of its ``HostDocument``. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fabricd import __version__
from fabricd.config.loader import Config
from fabricd.engine import Engine
from telemetry.messages.documents import FENCES_WITH_USERS, HostDocument, parse

MOST_ADDRESSES = 8


def host_document(
    config: Config,
    addresses: Sequence[Sequence[str]],
    engine: Engine,
    mode: str,
    leaf: Callable[[int], str],
) -> dict[str, Any]:
    """The data of a ``HostDocument`` message.

    Args:
        config: of the daemon.
        addresses: of each configured link, the probed one first.
        engine: whose links are those of ``config``.
        mode: observe, steer or migrate, as in effect.
        leaf: rail → the leaf switch of this host's port on it, "" where not known.
    """
    assert config.broker is not None
    data = {
        "name": config.host.name,
        "links": [
            {
                "netdev": link.netdev,
                "rail": link.rail,
                "addresses": list(own)[:MOST_ADDRESSES],
                "leaf": leaf(link.rail),
                "state": link.health.state.name.lower(),
            }
            for link, own in zip(engine.links, addresses, strict=True)
        ],
        "probe_port": config.probe.port,
        "rack": config.broker.rack,
        "mode": mode,
        "versions": {"fabricd": __version__, FENCES_WITH_USERS: "2"},
    }
    return parse(HostDocument, data).model_dump()
