"""A switch between the NICs of more than two machines: every frame goes to all other ports."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.vm.machine import Nic

_MOST_BYTES = 65536 + 64  # of a frame that QEMU hands over, segmentation offload included
_LOOK_S = 0.2


class Switch:
    """Use as a context manager. A machine that is off takes no frame, and nobody is told.

    Args:
        directory: where the Unix sockets of its ports and of the machines' NICs lie.
        name: prefix of their names.
        macs: address of the NIC at each port.
    """

    def __init__(self, directory: Path, name: str, macs: list[str]) -> None:
        self._ports = [directory / f"{name}-port{at}" for at in range(len(macs))]
        self.nics = [
            Nic(directory / f"{name}-nic{at}", port, mac)
            for at, (port, mac) in enumerate(zip(self._ports, macs, strict=True))
        ]
        """One for each port, in their order: what plugs a machine in."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carry, name=name)

    def __enter__(self) -> Self:
        self._selector = selectors.DefaultSelector()
        for at, path in enumerate(self._ports):
            port = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            port.bind(str(path))
            port.setblocking(False)
            self._selector.register(port, selectors.EVENT_READ, at)
        self._thread.start()
        return self

    def _carry(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(_LOOK_S):
                port: socket.socket = key.fileobj  # type: ignore[assignment]
                with contextlib.suppress(OSError):
                    self._flood(port, port.recv(_MOST_BYTES), key.data)

    def _flood(self, port: socket.socket, frame: bytes, origin: int) -> None:
        for at, nic in enumerate(self.nics):
            if at != origin:
                with contextlib.suppress(OSError):  # off, or its queue is full
                    port.sendto(frame, str(nic.local))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
