"""The one builder of a `Host` for unit tests: no prober, no disk, no clock of its own.

`engine_host` has an engine alone, with simulated peers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fabricd.config.loader import parse
from fabricd.links.flaps import FlapLedger
from fabricd.links.inventory import Inventory
from fabricd.operate.manager import OverrideManager
from fabricd.operate.store import OverrideStore
from fabricd.probes.feed import ProberFeed
from fabricd.runtime.host import Stores, make_host
from fabricd.runtime.settings import HostSettings
from fabricd.steer.modes import Mode, Modes
from fabricd.steer.page import SteerPage, decode
from fabricd.timeline.recorder import Recorder


def link_tables(rails=3, *, addressed=False):
    """``[[links]]`` rail0, rail1, …; with ``addressed`` each has the address 10.RAIL.0.1."""
    return "".join(
        f'[[links]]\nnetdev = "rail{r}"\nrail = {r}\n'
        + (f'address = "10.{r}.0.1"\n' if addressed else "")
        for r in range(rails)
    )


def peer_tables(names="ab", rails=3):
    """``[[peers]]``, one a letter, with the addresses 10.RAIL.0.2, 10.RAIL.0.3, …"""
    return "".join(
        f'[[peers]]\nhost = "{name}"\naddresses = ['
        + ", ".join(f'{{ rail = {r}, address = "10.{r}.0.{i}" }}' for r in range(rails))
        + "]\n"
        for i, name in enumerate(names, 2)
    )


LINKS = link_tables()


def text(tmp_path: Path, extra: str = "", links: str = LINKS) -> str:
    return f'[host]\nname = "h"\n[paths]\nrun_dir = "{tmp_path}"\n{links}{extra}'


class WholeHost:
    """Links rail0 to rail2, all with carrier; mode steer."""

    def __init__(
        self,
        tmp_path: Path,
        extra: str = "",
        links: str = LINKS,
        *,
        inventory: Inventory | None = None,
        feed: Callable[[Path], ProberFeed] = ProberFeed,
        untouched: bool = False,
    ) -> None:
        """Args: ``untouched``: no carrier is known, nothing evaluated, the mode left as it is."""
        self.directory = tmp_path
        self.told: list = []
        page = SteerPage(tmp_path / "steer", incarnation=1)
        page.open(1)
        modes = Modes(tmp_path / "mode", tmp_path / "STOP")
        if not untouched and not (tmp_path / "mode").exists():
            modes.promote(Mode.STEER)
        self.host = make_host(
            HostSettings(parse(text(tmp_path, extra, links), "f")),
            inventory or Inventory(loaded=True),
            Stores(
                modes, page, Recorder(lambda: None), FlapLedger("b"), {},
                OverrideManager(OverrideStore(tmp_path / "operator.json")),
            ),
            feed=feed(tmp_path),
        )  # fmt: skip
        self.host.events.subscribe(self.told.append)
        self.refused = self.host.operator.open()
        if not untouched:
            for link in self.host.engine.links:
                link.carrier = True
            self.host.evaluator.step()

    @property
    def overrides(self):
        return self.host.operator.manager

    def operate(self, what, *arguments, **options):
        """An operator's override, in force when this returns; ``what``: of `OverrideManager`."""
        operator = self.host.operator
        change = getattr(operator.manager, what)(operator.host, *arguments, **options)
        return operator.apply(change)

    def link(self, netdev):
        return next(x for x in self.host.engine.links if x.netdev == netdev)

    def weights(self):
        page = decode((self.directory / "steer").read_bytes())
        return {rail.netdev: rail.weight for rail in page.rails}

    def states(self):
        return {x.netdev: x.health.state.name for x in self.host.engine.links}

    def reasons(self, kind="operator"):
        return [row.get("reason", "") for row in self.told if row["kind"] == kind]

    def close(self):
        self.host.close()
        self.host.publisher.page.close()
