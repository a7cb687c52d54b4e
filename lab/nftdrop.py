"""Drop packets at one device, in or out, all or a random share: nftables over nfnetlink.

One fault is one table of family ``netdev`` with one base chain per device and direction, so ending
a fault is deleting its table and touches no other. The ingress hook sees what comes from the host
before the bridge does; the egress hook (Linux 5.16) sees what goes to the host, bridged or routed,
ARP and neighbour discovery included. Carrier stays up.

The table is owned by the socket (NFT_TABLE_F_OWNER, Linux 5.12): the kernel removes it when the
process dies, so a killed fault cannot stay in force.

The messages are spoken directly (linux/netfilter/nf_tables.h) rather than through ``nft``: one send
on a socket that is already open takes effect in well under a millisecond, so ground truth is sharp.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from lab import netns
from lab.rtlink import check_ack

NETLINK_NETFILTER = 12
NFNL_SUBSYS_NFTABLES = 10
BATCH_BEGIN, BATCH_END = 0x10, 0x11
NEWTABLE, DELTABLE, NEWCHAIN, NEWRULE = 0, 2, 3, 6
NFPROTO_NETDEV = 5
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE, NLM_F_APPEND = 0x1, 0x4, 0x400, 0x800
NLA_F_NESTED = 0x8000
NF_DROP, NF_ACCEPT = 0, 1
HOOKS = {"ingress": 0, "egress": 1}
REG_VERDICT, REG_1 = 0, 1
NG_RANDOM = 1
CMP_LT = 2
HTON = 1
TABLE_OWNER = 2
SCALE = 100_000
"""Loss is a share of this many."""

Hook = Literal["ingress", "egress"]


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop ``share`` of ``SCALE`` packets at random at one hook of one device."""

    device: str
    hook: Hook
    share: int = SCALE


def _attr(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + b"\0" * (-size % 4)


def _nest(kind: int, *inner: bytes) -> bytes:
    return _attr(kind | NLA_F_NESTED, b"".join(inner))


def _be32(kind: int, value: int) -> bytes:
    return _attr(kind, struct.pack(">I", value & 0xFFFFFFFF))


def _text(kind: int, value: str) -> bytes:
    return _attr(kind, value.encode() + b"\0")


def _expr(name: str, *attrs: bytes) -> bytes:
    return _nest(1, _text(1, name), _nest(2, *attrs))


def _message(kind: int, flags: int, family: int, body: bytes, res_id: int = 0) -> bytes:
    size = 16 + 4 + len(body)
    header = struct.pack("=IHHII", size, kind, NLM_F_REQUEST | flags, 0, 0)
    return header + struct.pack(">BBH", family, 0, res_id) + body


def _batch(*messages: bytes) -> bytes:
    begin = _message(BATCH_BEGIN, 0, 0, b"", NFNL_SUBSYS_NFTABLES)
    end = _message(BATCH_END, 0, 0, b"", NFNL_SUBSYS_NFTABLES)
    return begin + b"".join(messages) + end


def _nft(kind: int, flags: int, body: bytes) -> bytes:
    return _message(NFNL_SUBSYS_NFTABLES << 8 | kind, flags, NFPROTO_NETDEV, body)


def _random_drop(table: str, chain: str, share: int) -> bytes:
    """``numgen random mod SCALE < share drop``."""
    expressions = (
        _expr("numgen", _be32(1, REG_1), _be32(2, SCALE), _be32(3, NG_RANDOM), _be32(4, 0)),
        # cmp compares bytes, so the number has to be big-endian first.
        _expr(
            "byteorder", _be32(1, REG_1), _be32(2, REG_1), _be32(3, HTON), _be32(4, 4), _be32(5, 4)
        ),
        _expr("cmp", _be32(1, REG_1), _be32(2, CMP_LT), _nest(3, _be32(1, share))),
        _expr("immediate", _be32(1, REG_VERDICT), _nest(2, _nest(2, _be32(1, NF_DROP)))),
    )
    body = _text(1, table) + _text(2, chain) + _nest(4, *expressions)
    return _nft(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, body)


def install_message(table: str, drops: list[Drop]) -> bytes:
    """The batch that makes a fault's table."""
    messages = [_nft(NEWTABLE, NLM_F_CREATE, _text(1, table) + _be32(2, TABLE_OWNER))]
    for drop in drops:
        chain = f"{drop.hook}_{drop.device}"
        policy = NF_DROP if drop.share >= SCALE else NF_ACCEPT
        hook = _nest(4, _be32(1, HOOKS[drop.hook]), _be32(2, 0), _text(3, drop.device))
        messages.append(
            _nft(
                NEWCHAIN,
                NLM_F_CREATE,
                _text(1, table) + _text(3, chain) + hook + _be32(5, policy) + _text(7, "filter"),
            )
        )
        if policy == NF_ACCEPT:
            messages.append(_random_drop(table, chain, drop.share))
    # Only the last one asks for an acknowledgement: the batch succeeds or fails as a whole.
    last = bytearray(messages[-1])
    flags = struct.unpack_from("=H", last, 6)[0]
    struct.pack_into("=H", last, 6, flags | NLM_F_ACK)
    return _batch(*messages[:-1], bytes(last))


def remove_message(table: str) -> bytes:
    """The batch that deletes a fault's table with all in it."""
    return _batch(_nft(DELTABLE, NLM_F_ACK, _text(1, table)))


class DropTable:
    """One fault's table in one namespace: ``install`` and ``remove``, each one send."""

    def __init__(self, ns: str, table: str, drops: list[Drop]) -> None:
        self._install = install_message(table, drops)
        self._remove = remove_message(table)
        self._socket = netns.netlink_socket(ns, NETLINK_NETFILTER)

    def install(self) -> None:
        """Begin to drop.

        Raises:
            OSError: the kernel refused the batch; nothing of it holds then.
        """
        self._send(self._install)

    def remove(self) -> None:
        """Stop dropping."""
        self._send(self._remove)

    def _send(self, batch: bytes) -> None:
        self._socket.send(batch)
        check_ack(self._socket.recv(65536))

    def close(self) -> None:
        """Close the socket; the kernel removes the table if it is still installed."""
        self._socket.close()
