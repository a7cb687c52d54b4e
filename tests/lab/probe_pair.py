"""Two network namespaces joined by two veth rails, a real prober in each: the prober's test bed.

Rail 0 speaks IPv4, rail 1 IPv6. Made with pyroute2, removed on exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from pyroute2 import NetNS, netns

from fabricd.probes.client import ProbeConfig, ProbeLink, ProbePath, ProberClient, host_id
from fabricd.probes.records import Direction, EventRecord, MissRecord, RingHeader, StallRecord
from fabricd.probes.ring import RingReader

E = TypeVar("E")

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "build" / os.environ.get("FABRIC_BUILD", "release")
INTERVAL_NS = 10_000_000
PORT = 9200
RAILS = ("rail0", "rail1")


PATIENCE_S = 60.0


def until(check: Callable[[], object], what: str) -> None:
    """Polls until ``check`` is true; AssertionError naming ``what`` after ``PATIENCE_S``."""
    end = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < end, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.005)


class Host:
    """One namespace and its prober."""

    def __init__(self, name: str, number: int, directory: Path, key: Path) -> None:
        self.name = name
        self.number = number
        self.run_dir = directory / f"h{number}"
        self.run_dir.mkdir()
        self.key_file = key
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.run_dir / "log"
        self.seen: list[EventRecord] = []
        self._ring: RingReader | None = None

    @property
    def other(self) -> int:
        return 3 - self.number

    def address(self, rail: int, number: int | None = None) -> str:
        number = number or self.number
        return f"10.77.{rail}.{number}" if rail == 0 else f"fd77:{rail}::{number}"

    def start(
        self, *arguments: str, sysfs: bool = True, env: Mapping[str, str] | None = None
    ) -> None:
        """Starts the prober; without ``sysfs`` its /sys shows another namespace."""
        enter = (
            ["ip", "netns", "exec", self.name]
            if sysfs
            else ["nsenter", f"--net=/run/netns/{self.name}"]
        )
        ring = self.run_dir / "prober" / "ring"
        before = ring.stat().st_ino if ring.exists() else None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*enter, BUILD / "prober" / "fabric-prober", "--run-dir", self.run_dir,
                 *(["--key-file", self.key_file] if self.key_file else []), *arguments],
                stderr=log, env=os.environ | dict(env or {}),
            )  # fmt: skip
        until(lambda: ring.exists() and ring.stat().st_ino != before, "a new ring")
        until(self.listens, "the control socket")
        self.attach()

    def listens(self) -> bool:
        """Whether the control socket takes connections: its file is there a moment before."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            return sock.connect_ex(os.fspath(self.run_dir / "prober" / "ctl.sock")) == 0

    def attach(self) -> None:
        """Maps the present ring anew, from its first record."""
        if self._ring is not None:
            self._ring.close()
        self._ring = RingReader(self.run_dir / "prober" / "ring", from_start=True)

    @property
    def ring(self) -> RingReader:
        assert self._ring is not None
        return self._ring

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(how)
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code

    def suspend(self) -> int:
        """SIGSTOP; CLOCK_MONOTONIC at which the prober had surely stopped."""
        assert self.process is not None
        stat = Path(f"/proc/{self.process.pid}/stat")
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the stop")
        return time.monotonic_ns()

    def config(self, **changes: int) -> ProbeConfig:
        links = [ProbeLink(r, RAILS[r], self.address(r), PORT) for r in (0, 1)]
        peer = host_id(f"h{self.other}")
        paths = [ProbePath(r, r, self.address(r, self.other), PORT, peer) for r in (0, 1)]
        return ProbeConfig(host_id(f"h{self.number}"), links, paths, **changes)

    def ask(self, op: str, **arguments: object) -> dict[str, object]:
        """One request to the prober, outside any event loop."""

        async def once() -> dict[str, object]:
            client = await ProberClient.connect(self.run_dir / "prober" / "ctl.sock")
            try:
                return await client.request({"op": op, **arguments})
            finally:
                await client.close()

        return asyncio.run(once())

    def configure(self, config: ProbeConfig | None = None) -> None:
        self.ask("configure", **(config or self.config()).document())

    @overload
    def events(self) -> list[EventRecord]: ...
    @overload
    def events(self, kind: type[E]) -> list[E]: ...
    def events(self, kind: Any = None) -> Any:
        """All events of this ring so far, of one kind if given."""
        self.seen += self.ring.events()
        assert not self.ring.lost_events
        return [e for e in self.seen if kind is None or isinstance(e, kind)]

    def heard(self) -> bool:
        rows = self.ring.paths()
        return len(rows) == 2 and all(r.established and r.received > 3 for r in rows)

    def published(self) -> RingHeader:
        """The ring's header, with all that the prober had counted by now."""
        now = time.monotonic_ns()
        until(lambda: self.ring.header().heartbeat_ns > now, "a heartbeat")
        return self.ring.header()

    def hears(self, packets: int, paths: tuple[int, ...] = (0, 1)) -> None:
        """Waits until so many more packets have come on each of ``paths``."""
        before = [row.received for row in self.ring.paths()]

        def heard() -> bool:
            rows = self.ring.paths()
            return all(rows[p].received >= before[p] + packets for p in paths)

        until(heard, f"{packets} more packets on paths {paths}")

    def gap_ns(self, start_ns: int, end_ns: int) -> int:
        """How much of that time the prober itself did not run, as its STALL records say."""
        return sum(
            max(0, min(e.start_ns + e.gap_ns, end_ns) - max(e.start_ns, start_ns))
            for e in self.events(StallRecord)
        )

    def refused(self) -> dict[str, int]:
        """Packets refused so far, by reason."""
        self.published()
        return {reason.value: n for reason, n in self.ring.header().refused.items()}

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread's network namespace is the host's meanwhile."""
        netns.pushns(self.name)
        try:
            yield
        finally:
            netns.popns()

    def packet_socket(self, rail: int, protocol: int = 0) -> socket.socket:
        with self.inside():
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
            sock.bind((RAILS[rail], protocol))
        return sock

    def nft(self, script: str) -> None:
        subprocess.run(
            ["ip", "netns", "exec", self.name, "nft", "-f", "-"],
            input=script.encode(), check=True, timeout=PATIENCE_S,
        )  # fmt: skip


class Pair:
    """Both hosts, the key and the wires."""

    def __init__(self, directory: Path) -> None:
        self.key = secrets.token_bytes(32)
        key_file = directory / "probe.key"
        key_file.touch(mode=0o600)
        key_file.write_text(self.key.hex() + "\n")
        tag = f"prb{os.getpid()}-{secrets.token_hex(2)}"
        self.a, self.b = (Host(f"{tag}-{n}", n, directory, key_file) for n in (1, 2))

    @property
    def hosts(self) -> tuple[Host, Host]:
        return self.a, self.b

    def up(self) -> None:
        for host in self.hosts:
            netns.create(host.name)
        for rail in (0, 1):
            self.wire(rail)

    def wire(self, rail: int) -> None:
        """Makes rail ``rail``'s veth pair with its addresses."""
        with NetNS(self.a.name) as ipr:
            ipr.link(
                "add", ifname=RAILS[rail], kind="veth",
                peer={"ifname": RAILS[rail], "net_ns_fd": self.b.name},
            )  # fmt: skip
        for host in self.hosts:
            with NetNS(host.name) as ipr:
                (index,) = ipr.link_lookup(ifname=RAILS[rail])
                ipr.addr(
                    "add", index=index, address=host.address(rail),
                    prefixlen=24 if rail == 0 else 64, **({"flags": 2} if rail else {}),
                )  # fmt: skip
                ipr.link("set", index=index, state="up")

    def cut(self, rail: int) -> None:
        """Removes rail ``rail``'s veth pair."""
        with NetNS(self.a.name) as ipr:
            (index,) = ipr.link_lookup(ifname=RAILS[rail])
            ipr.link("del", index=index)

    def down(self) -> None:
        for host in self.hosts:
            if host.process is not None:
                host.process.send_signal(signal.SIGCONT)
                host.process.kill()
                host.process.wait(PATIENCE_S)
            with contextlib.suppress(OSError):
                netns.remove(host.name)

    def flap(self, rail: int, count: int, period_s: float) -> None:
        """Carrier of host a's rail: ``count`` times down and up, by the far end of the veth."""
        with NetNS(self.b.name) as ipr:
            (index,) = ipr.link_lookup(ifname=RAILS[rail])
            for _ in range(count):
                ipr.link("set", index=index, state="down")
                time.sleep(period_s / 2)
                ipr.link("set", index=index, state="up")
                time.sleep(period_s / 2)


__all__ = ["PORT", "RAILS", "Host", "Pair", "until"]


def misses(host: Host, direction: Direction, since_ns: int = 0) -> list[MissRecord]:
    return [e for e in host.events(MissRecord) if e.direction is direction and e.mono_ns > since_ns]


def conclusive(records: list[MissRecord]) -> list[MissRecord]:
    return [r for r in records if not r.inconclusive]


def accused(host: Host, peer: Host, direction: Direction, since_ns: int = 0) -> set[int]:
    """Paths that ``host`` called silent, less the silences in which ``peer`` did not run."""
    found = set()
    for miss in conclusive(misses(host, direction, since_ns)):
        silence = miss.silent_ns - peer.gap_ns(miss.mono_ns - miss.silent_ns, miss.mono_ns)
        if miss.count >= 3 and silence >= 7 * INTERVAL_NS // 2:
            found.add(miss.path)
    return found
