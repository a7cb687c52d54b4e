"""The daemon's control socket: lines as a client sends them, into the handlers of a whole host.

Half of the lines are requests of the right form with wrong contents, the others are damaged.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from fabricd.config.loader import ConfigError, Problem, parse
from fabricd.config.source import ConfigSource
from fabricd.control.access import Caller
from fabricd.control.requests import Requests
from fabricd.control.server import RequestError, encode, parse_request
from fabricd.links.flaps import FlapLedger
from fabricd.links.inventory import Inventory
from fabricd.operate.manager import OverrideManager
from fabricd.operate.store import OverrideStore
from fabricd.runtime.host import Host, Stores, make_host
from fabricd.runtime.settings import HostSettings
from fabricd.steer.modes import Mode, Modes
from fabricd.steer.page import SteerPage
from fabricd.timeline.recorder import Recorder
from fabricd.views.services import Services
from lab.fuzz.parsers import Target, damaged
from telemetry.timeline import Timeline, TimelineError

_OPS = (
    "timeline", "drain", "undrain", "maintenance", "maintenance_end", "detector", "promote",
    "reload", "events", "none",
) * 3 + ("explain",)  # fmt: skip
"""Those that take no argument are not asked: their answer is the same for every input."""
_KEYS = (
    "link", "target", "name", "on", "seconds", "reason", "mode", "group", "since_ns", "until_ns",
    "kind", "limit", "op",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    "rail0", "rail1", "rail9", "host", "loss", "carrier", "steer", "observe", "operator", "flap",
    "", "x" * 300, "\ud800", "../..", None, True, False, 0, 1, -1, 60, 0.5, 1e308, -1e308,
    float("nan"), float("inf"), 2**63, -(2**63), 2**64, 10**400, [], [[]], {}, {"a": []},
)  # fmt: skip


_RIGHT: dict[str, tuple[Any, ...]] = {
    "link": ("rail0", "rail1", "rail2"), "target": ("rail0", "rail1", "host"),
    "name": ("loss", "carrier"), "on": (True, False), "seconds": (60, 0.5, None),
    "reason": ("because", ""), "mode": ("steer", "observe"), "kind": ("flap", "operator"),
    "limit": (0, 7), "since_ns": (0, 5),
}  # fmt: skip
"""So that some requests get as far as being served."""


def _config(directory: Path) -> str:
    links = "".join(f'[[links]]\nnetdev = "rail{r}"\nrail = {r}\n' for r in range(3))
    return f'[host]\nname = "h"\n[paths]\nrun_dir = "{directory}"\n{links}'


def _no_store() -> Timeline:
    raise TimelineError("nothing is stored here")


def _host(directory: Path) -> Host:
    """Three links with carrier, steered; no prober, and a timeline that is never written."""
    page = SteerPage(directory / "steer", incarnation=1)
    page.open(1)
    modes = Modes(directory / "mode", directory / "STOP")
    modes.promote(Mode.STEER)
    overrides = OverrideManager(OverrideStore(directory / "operator.json"))
    host = make_host(
        HostSettings(parse(_config(directory), "f")),
        Inventory(loaded=True),
        Stores(modes, page, Recorder(_no_store), FlapLedger("b"), {}, overrides),
    )
    host.operator.open()
    for link in host.engine.links:
        host.engine.report_carrier(link, carrier=True, downs=0)
    host.evaluator.step()
    return host


def _line(rng: random.Random) -> bytes:
    document = {key: rng.choice(choice) for key, choice in _RIGHT.items() if rng.random() < 0.7}
    document |= {rng.choice(_KEYS): rng.choice(_VALUES) for _ in range(rng.randrange(3))}
    if rng.random() < 0.98:
        document["op"] = rng.choice(_OPS)
    return json.dumps(document).encode()


def _make(rng: random.Random) -> bytes:
    line = _line(rng)
    return line if rng.random() < 0.5 else damaged(line, _line(rng), rng)


def control() -> Target:
    """A host, its handlers, and a caller that may do everything."""
    shm = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(
        prefix="fabric-fuzz-control-", dir=shm if shm.is_dir() else None
    )
    directory = Path(folder.name)
    loop = asyncio.new_event_loop()
    file = directory / "fabricd.toml"
    file.write_text(_config(directory))

    async def reload(by: str) -> list[str]:
        raise ConfigError([Problem(str(file), 1, "x", f"asked by {by}")])

    async def begin() -> Host:
        return _host(directory)

    host = loop.run_until_complete(begin())
    source = ConfigSource(file, host.config)
    handlers = Requests(host, Services(), source, directory / "none.db", reload).handlers()
    caller = Caller(1, 0)

    def parse_line(line: bytes) -> bool:
        request = parse_request(line)
        handler = handlers.get(request["op"])
        if handler is None:  # The server says so.
            return True
        encode(loop.run_until_complete(handler(request, caller)))
        return False

    def close() -> None:
        host.close()
        host.publisher.page.close()
        loop.close()
        folder.cleanup()

    return Target(_make, parse_line, (RequestError,), close)
