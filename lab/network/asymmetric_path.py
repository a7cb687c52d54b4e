"""A fabric of two ways, one longer: by a bit of its source port UDP goes a chain of wires or not.

What ECMP does with a hash of the ports, between one pair of hosts, one way, on one rail's leaf. The
chain is veth pairs, each handing on what comes in to the next (tc-u32(8), tc-mirred(8)): some
hundred nanoseconds each, without netem. Nothing is lost, and nothing else goes there.
"""

from __future__ import annotations

import subprocess
from types import TracebackType

from lab.topology import Topology

PREFIX = "way"
BIT = 8
"""Of the source port: not set, the packet goes the long way. 9200, which hosts
probe from, does."""


class AsymmetricPath:
    """In force within a ``with``."""

    def __init__(
        self, topology: Topology, source: int, target: int, *, rail: int = 0, hops: int = 16
    ) -> None:
        """Args: ``source``, ``target``: indices of hosts; ``hops``: veth pairs in the chain."""
        if source == target or hops < 1:
            raise ValueError("two hosts, and a hop at least")
        self._ns = topology.ns("leaf", rail)
        self._from = topology.leaf_port(source, rail).ifname
        self._to = topology.leaf_port(target, rail).ifname
        self._address = f"10.{rail}.0.{target + 1}/32"
        self._hops = hops

    def __enter__(self) -> AsymmetricPath:
        """Raises OSError or CalledProcessError; then nothing is left of it."""
        try:
            for hop in range(self._hops):
                one, other = f"{PREFIX}{hop}a", f"{PREFIX}{hop}b"
                self._do("ip", "link", "add", one, "type", "veth", "peer", "name", other)
                for end in (one, other):
                    self._do("ip", "link", "set", end, "up")
            for hop in range(self._hops):
                to = self._to if hop == self._hops - 1 else f"{PREFIX}{hop + 1}a"
                self._redirect(f"{PREFIX}{hop}b", to, "u32", "match", "u32", "0", "0")
            self._redirect(
                self._from, f"{PREFIX}0a", "u32", "match", "ip", "dst", self._address, "match",
                "ip", "protocol", "17", "0xff", "match", "ip", "sport", "0", str(BIT),
            )  # fmt: skip
        except BaseException:
            self._undo()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._undo()

    def _redirect(self, ifname: str, to: str, *match: str) -> None:
        self._do("tc", "qdisc", "add", "dev", ifname, "clsact")
        self._do("tc", "filter", "add", "dev", ifname, "ingress", "protocol", "ip", *match,
                 "action", "mirred", "egress", "redirect", "dev", to)  # fmt: skip

    def _undo(self) -> None:
        self._do("tc", "qdisc", "del", "dev", self._from, "clsact", check=False)
        for hop in range(self._hops):
            self._do("ip", "link", "del", f"{PREFIX}{hop}a", check=False)

    def _do(self, *words: str, check: bool = True) -> None:
        subprocess.run(
            ["ip", "netns", "exec", self._ns, *words], check=check, timeout=20, capture_output=True
        )
