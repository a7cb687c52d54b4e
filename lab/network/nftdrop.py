"""Drop packets at one device, or answer them with a reset: nftables over nfnetlink.

In or out, all or a random share, at once or after so many bytes. One fault is one table of family
``netdev`` with one base chain per device and direction, so ending a fault is deleting its table and
touches no other. The ingress hook sees what comes from the host before the bridge does; the egress
hook (Linux 5.16) sees what goes to the host, bridged or routed, ARP and neighbour discovery
included. Carrier stays up.

The table is owned by the socket (NFT_TABLE_F_OWNER, Linux 5.12): the kernel removes it when the
process dies, so a killed fault cannot stay in force.

The messages are spoken directly (linux/netfilter/nf_tables.h) rather than through ``nft``: one send
on a socket that is already open takes effect in well under a millisecond, so ground truth is sharp.
Only the counters, which are read at leisure, come through ``nft``.
"""

from __future__ import annotations

import json
import struct
import subprocess
from dataclasses import dataclass
from typing import Any, Literal

from lab.network import netns
from lab.network.rtlink import check_ack

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
CMP_EQ, CMP_LT = 0, 2
META_L4PROTO = 16
IPPROTO_TCP = 6
REJECT_TCP_RST = 1
QUOTA_OVER = 1
HTON = 1
TABLE_OWNER = 2
SCALE = 100_000
"""Loss is a share of this many."""

Hook = Literal["ingress", "egress"]
Answer = Literal["silence", "reset"]


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop ``share`` of ``SCALE`` packets at random at one hook of one device.

    With ``after_bytes`` the first so many bytes pass. With the answer ``reset`` (ingress only) the
    sender of each TCP packet is told RST; what is not TCP passes.
    """

    device: str
    hook: Hook
    share: int = SCALE
    after_bytes: int = 0
    answer: Answer = "silence"

    @property
    def chain(self) -> str:
        """Its base chain."""
        return f"{self.hook}_{self.device}"


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


def _random(share: int) -> tuple[bytes, ...]:
    """``numgen random mod SCALE < share``."""
    return (
        _expr("numgen", _be32(1, REG_1), _be32(2, SCALE), _be32(3, NG_RANDOM), _be32(4, 0)),
        # cmp compares bytes, so the number has to be big-endian first.
        _expr(
            "byteorder", _be32(1, REG_1), _be32(2, REG_1), _be32(3, HTON), _be32(4, 4), _be32(5, 4)
        ),
        _expr("cmp", _be32(1, REG_1), _be32(2, CMP_LT), _nest(3, _be32(1, share))),
    )


def _is_tcp() -> tuple[bytes, ...]:
    """``meta l4proto tcp``."""
    return (
        _expr("meta", _be32(1, REG_1), _be32(2, META_L4PROTO)),
        _expr("cmp", _be32(1, REG_1), _be32(2, CMP_EQ), _nest(3, _attr(1, bytes([IPPROTO_TCP])))),
    )


def _rule(table: str, drop: Drop) -> bytes:
    expressions: list[bytes] = []
    if drop.after_bytes:
        over = _attr(1, struct.pack(">Q", drop.after_bytes))
        expressions.append(_expr("quota", over, _be32(2, QUOTA_OVER)))
    if drop.share < SCALE:
        expressions += _random(drop.share)
    if drop.answer == "reset":
        expressions += _is_tcp()
    expressions.append(_expr("counter"))
    if drop.answer == "reset":
        expressions.append(_expr("reject", _be32(1, REJECT_TCP_RST)))
    else:
        verdict = _nest(2, _nest(2, _be32(1, NF_DROP)))
        expressions.append(_expr("immediate", _be32(1, REG_VERDICT), verdict))
    body = _text(1, table) + _text(2, drop.chain) + _nest(4, *expressions)
    return _nft(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, body)


def install_message(table: str, drops: list[Drop]) -> bytes:
    """The batch that makes a fault's table: for each drop a chain with one rule."""
    messages = [_nft(NEWTABLE, NLM_F_CREATE, _text(1, table) + _be32(2, TABLE_OWNER))]
    for drop in drops:
        hook = _nest(4, _be32(1, HOOKS[drop.hook]), _be32(2, 0), _text(3, drop.device))
        messages.append(
            _nft(
                NEWCHAIN,
                NLM_F_CREATE,
                _text(1, table)
                + _text(3, drop.chain)
                + hook
                + _be32(5, NF_ACCEPT)
                + _text(7, "filter"),
            )
        )
        messages.append(_rule(table, drop))
    # Only the last one asks for an acknowledgement: the batch succeeds or fails as a whole.
    last = bytearray(messages[-1])
    flags = struct.unpack_from("=H", last, 6)[0]
    struct.pack_into("=H", last, 6, flags | NLM_F_ACK)
    return _batch(*messages[:-1], bytes(last))


def remove_message(table: str) -> bytes:
    """The batch that deletes a fault's table with all in it."""
    return _batch(_nft(DELTABLE, NLM_F_ACK, _text(1, table)))


def counted(listing: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Packets by (device, hook) in what ``nft -j list table`` prints."""
    found: dict[tuple[str, str], int] = {}
    for item in listing:
        rule = item.get("rule")
        if rule is None:
            continue
        hook, _, device = rule["chain"].partition("_")
        for expression in rule["expr"]:
            if "counter" in expression:
                found[device, hook] = expression["counter"]["packets"]
    return found


class DropTable:
    """One fault's table in one namespace: ``install`` and ``remove``, each one send."""

    def __init__(self, ns: str, table: str, drops: list[Drop]) -> None:
        self._ns, self._table = ns, table
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

    def packets(self) -> dict[tuple[str, str], int]:
        """Packets dropped or answered so far, by (device, hook); only while it is installed.

        Raises:
            OSError: it is not.
        """
        command = ["ip", "netns", "exec", self._ns, "nft", "-j"]
        command += ["list", "table", "netdev", self._table]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"nft: {done.stderr.strip()}")
        return counted(json.loads(done.stdout)["nftables"])

    def _send(self, batch: bytes) -> None:
        self._socket.send(batch)
        check_ack(self._socket.recv(65536))

    def close(self) -> None:
        """Close the socket; the kernel removes the table if it is still installed."""
        self._socket.close()
