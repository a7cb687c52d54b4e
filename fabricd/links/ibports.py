"""State of InfiniBand and RoCE ports through pyverbs, where installed. Optional and thin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_ACTIVE = 4  # enum ibv_port_state, IBV_PORT_ACTIVE


class IbPorts:
    """Which verbs port stands behind which netdev, and whether it is active.

    Attributes:
        note: one line for the log: what was found, or why there is nothing.
    """

    def __init__(self, netdevs: Sequence[str]) -> None:
        self._ports: dict[str, str] = {}
        try:
            from pyverbs.device import Context, get_device_list
        except (ImportError, OSError):
            self._context = None
            self.note = "pyverbs is absent: port state from carrier alone"
            return
        self._context = Context
        try:
            names = [device.name.decode() for device in get_device_list()]
        except Exception as error:
            self.note = f"no verbs devices: {type(error).__name__}"
            return
        for name in names:
            for netdev in _netdevs_of(name):
                if netdev in netdevs:
                    self._ports[netdev] = name
        self.note = (
            ", ".join(f"{netdev}={device}" for netdev, device in sorted(self._ports.items()))
            or "no verbs device behind the configured links"
        )

    @property
    def netdevs(self) -> list[str]:
        """Those with a verbs port."""
        return sorted(self._ports)

    def read(self) -> dict[str, bool | None]:
        """`active` of each."""
        return {netdev: self.active(netdev) for netdev in self._ports}

    def active(self, netdev: str) -> bool | None:
        """Whether the port is ACTIVE; None when there is none, or it cannot be asked."""
        if netdev not in self._ports or self._context is None:
            return None
        try:
            with self._context(name=self._ports[netdev]) as context:
                return bool(context.query_port(1).state == _ACTIVE)
        except Exception:
            return None


def _netdevs_of(device: str) -> list[str]:
    """The network interfaces of a verbs device (sysfs-class-infiniband)."""
    found = []
    for path in Path(f"/sys/class/infiniband/{device}/ports").glob("*/gid_attrs/ndevs/0"):
        try:
            found.append(path.read_text(encoding="ascii").strip())
        except OSError:
            continue
    return found
