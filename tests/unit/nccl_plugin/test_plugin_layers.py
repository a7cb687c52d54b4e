"""Who may include what in the plugin: paths know no socket, transports know no path logic."""

from __future__ import annotations

import re
from pathlib import Path

PLUGIN = Path(__file__).parents[3] / "nccl_plugin"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

# What of host/ a transport may know: the interfaces, the codec of the wire and small nouns.
FOR_TRANSPORTS = {
    f"host/{name}.h"
    for name in (
        "address",
        "bytes",
        "context",
        "descriptor_budget",
        "fd",
        "handshake",
        "link",
        "memory",
        "monotonic",
        "network",
        "params",
        "poller",
        "rails",
        "random",
        "transport",
        "wire",
    )
}
ALLOWED = {
    "core": {"core/"},
    "pages": {"pages/"},
    "host": {"host/", "core/", "pages/", "src/net.h", "src/cancel.h", "src/descriptors.h"},
    "tcp": {"tcp/", "core/", "pages/", *FOR_TRANSPORTS},
    "verbs": {"verbs/", "core/", "pages/", "src/descriptors.h", *FOR_TRANSPORTS},
}


def test_layers() -> None:
    wrong = []
    seen = set()
    for layer, allowed in ALLOWED.items():
        for file in sorted((PLUGIN / layer).glob("*.*")):
            for name in INCLUDE.findall(file.read_text()):
                seen.add(layer)
                if not any(
                    name == rule or (rule[-1] == "/" and name.startswith(rule)) for rule in allowed
                ):
                    wrong.append(f"{layer}/{file.name} includes {name}")
    assert not wrong
    assert seen >= {"core", "host", "tcp"}
