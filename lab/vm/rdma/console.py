"""A shell on a host of an RDMA lab: this terminal joined with the guest's virtio console."""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import termios
import tty

from lab.topology import HostTarget, TopologyError
from lab.vm.rdma.registry import GuestLabInfo

DETACH = b"\x1d"
"""Ctrl-]"""
_END_OF_SHELL = b"\x03\x04\n"


def attach(info: GuestLabInfo, text: str, consoles: list[str]) -> None:
    """Join this terminal with a shell on host ``text`` until it ends or Ctrl-] is typed.

    Raises:
        TopologyError: ``text`` is no host, or standard input is no terminal.
    """
    target = info.topology.target(text)
    if not isinstance(target, HostTarget):
        raise TopologyError(f"'{text}' is no host, such as h0")
    if not sys.stdin.isatty():
        raise TopologyError("a shell needs a terminal; with a command: lab vm ssh h0 -- COMMAND")
    inside = info.kind == "namespaces"
    size = shutil.get_terminal_size()
    begin = f"stty rows {size.lines} cols {size.columns}; cd; clear"
    begin += f"; exec ip netns exec {target} bash -i\n" if inside else "\n"
    print(f"{target} of {info.topology.name}; Ctrl-] detaches", file=sys.stderr)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(consoles[0 if inside else target.host])
        sock.sendall(b"\n" + begin.encode())
        before = termios.tcgetattr(sys.stdin)
        try:
            tty.setraw(sys.stdin)
            _copy(sock)
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sock.sendall(_END_OF_SHELL)


def _copy(sock: socket.socket) -> None:
    keyboard = sys.stdin.fileno()
    while True:
        for ready in select.select([keyboard, sock], [], [])[0]:
            if ready is sock:
                data = sock.recv(65536)
                if not data:
                    return
                os.write(sys.stdout.fileno(), data)
                continue
            typed = os.read(keyboard, 1024)
            before, detach, _ = typed.partition(DETACH)
            sock.sendall(before)
            if detach or not typed:
                return
