"""A `Host` with everything but a prober, a disk and a clock of its own."""

from __future__ import annotations

from pathlib import Path

from fabricd.config.loader import parse
from fabricd.links.flaps import FlapLedger
from fabricd.links.inventory import Inventory
from fabricd.operate.manager import OverrideManager
from fabricd.operate.store import OverrideStore
from fabricd.runtime.host import Host
from fabricd.steer.modes import Mode, Modes
from fabricd.steer.page import SteerPage, decode
from fabricd.timeline.recorder import Recorder

LINKS = "".join(f'[[links]]\nnetdev = "rail{r}"\nrail = {r}\n' for r in range(3))


def text(tmp_path: Path, extra: str = "", links: str = LINKS) -> str:
    return f'[host]\nname = "h"\n[paths]\nrun_dir = "{tmp_path}"\n{links}{extra}'


class WholeHost:
    """Links rail0 to rail2, all with carrier; mode steer."""

    def __init__(self, tmp_path: Path, extra: str = "", links: str = LINKS) -> None:
        self.directory = tmp_path
        self.told: list = []
        page = SteerPage(tmp_path / "steer", incarnation=1)
        page.open(1)
        modes = Modes(tmp_path / "mode", tmp_path / "STOP")
        if not (tmp_path / "mode").exists():
            modes.promote(Mode.STEER)
        self.host = Host(
            parse(text(tmp_path, extra, links), "f"),
            modes=modes,
            page=page,
            recorder=Recorder(lambda: None),
            ledger=FlapLedger("b"),
            totals={},
            inventory=Inventory(loaded=True),
            overrides=OverrideManager(OverrideStore(tmp_path / "operator.json")),
        )
        self.host.follow = self.told.append
        self.refused = self.host.overrides.open(self.host)
        for link in self.host.engine.links:
            link.carrier = True
        self.host.step()

    @property
    def overrides(self):
        return self.host.overrides

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
        self.host.page.close()
