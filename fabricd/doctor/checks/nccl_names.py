"""NCCL's variables as data: the numbers that they take, and lists of device names. Pure.

Names and defaults are those of NCCL 2.30 (``NCCL_PARAM`` in src/transport/net_ib); NCCL reads a
number with strtoll, so a word counts as 0 and ``20s`` as 20, without a warning.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

IB_NUMBERS: Mapping[str, tuple[int, int]] = {
    "NCCL_IB_ADAPTIVE_ROUTING": (-2, 1),
    "NCCL_IB_AR_THRESHOLD": (-2, 1 << 40),
    "NCCL_IB_DATA_DIRECT": (0, 2),
    "NCCL_IB_DEVICE_PCI_ORDER": (0, 1),
    "NCCL_IB_DISABLE": (0, 1),
    "NCCL_IB_ECE_ENABLE": (0, 1),
    "NCCL_IB_FIFO_TC": (-1, 255),
    "NCCL_IB_GID_INDEX": (-1, 65535),
    "NCCL_IB_MERGE_NICS": (0, 1),
    "NCCL_IB_MERGE_VFS": (0, 1),
    "NCCL_IB_MQP_RETRY_ALL": (0, 1),
    "NCCL_IB_MQP_RETRY_CNT": (0, 1 << 31),
    "NCCL_IB_MQP_RETRY_SLEEP_MSEC": (0, 1 << 31),
    "NCCL_IB_OOO_RQ": (0, 1),
    "NCCL_IB_PCI_RELAXED_ORDERING": (0, 2),
    "NCCL_IB_PKEY": (0, 65535),
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS": (-2, 1),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128),
    "NCCL_IB_QUERY_PORT_SPEED": (0, 1),
    "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME": (-2, 8),
    "NCCL_IB_RESILIENCY_PORT_FAILOVER": (0, 1),
    "NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS": (0, 1 << 31),
    "NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY": (0, 1 << 31),
    "NCCL_IB_RESILIENCY_PORT_RECOVERY": (0, 1),
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX": (0, 1 << 31),
    "NCCL_IB_RETRY_CNT": (0, 7),
    "NCCL_IB_RETURN_ASYNC_EVENTS": (0, 1),
    "NCCL_IB_ROCE_VERSION_NUM": (1, 2),
    "NCCL_IB_ROUTABLE_FLID_GID_INDEX": (0, 65535),
    "NCCL_IB_SL": (-1, 15),
    "NCCL_IB_SPLIT_DATA_ON_QPS": (0, 1),
    "NCCL_IB_SUBNET_AWARE_ROUTING": (0, 1),
    "NCCL_IB_SUBNET_PREFIX_LEN": (0, 128),
    "NCCL_IB_TC": (-1, 255),
    "NCCL_IB_TIMEOUT": (0, 31),
    "NCCL_IB_USE_INLINE": (0, 1),
    "NCCL_IB_WARN_RAIL_LOCAL": (0, 1),
}
"""Variables that are numbers → least and greatest value that makes sense to NIC and NCCL."""

IB_WORDS = frozenset({"NCCL_IB_HCA", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE"})
IB_OLD = frozenset({"NCCL_IB_CUDA_SUPPORT", "NCCL_IB_GDR_LEVEL", "NCCL_IB_GDR_READ"})
_FAMILIES = ("NCCL_IB_RESILIENCY_",)
"""So many variables begin so that not each is listed."""
_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
_CLOSE = 0.8


@dataclass(frozen=True, slots=True)
class NameList:
    """A list of devices: ``mlx5_0,mlx5_1:1``, ``=eth0`` (exactly), ``^docker`` (all but these)."""

    items: tuple[str, ...]
    exclude: bool = False
    exact: bool = False

    @classmethod
    def parse(cls, text: str) -> NameList:
        """As the plugin reads it: ``^`` and then ``=`` stand before all of it.

        NCCL itself takes a blank for a part of the name.
        """
        text = text.strip()
        exclude = text.startswith("^")
        text = text[1:] if exclude else text
        exact = text.startswith("=")
        text = text[1:] if exact else text
        items = (item.strip() for item in text.split(","))
        return cls(tuple(item for item in items if item), exclude, exact)

    def matches(self, name: str, port: int | None = None) -> bool:
        """Whether an item names this device, or this port of it; without regard to ``^``."""
        for item in self.items:
            wanted, colon, number = item.partition(":")
            if not (name == wanted if self.exact else name.startswith(wanted)):
                continue
            if not colon or port is None or number == str(port):
                return True
        return False

    def selects(self, name: str, port: int | None = None) -> bool:
        """Whether the list lets this device be used."""
        return self.matches(name, port) != self.exclude


def number_of(text: str) -> int | None:
    """The number that a value is, decimal, octal or hexadecimal; None for another text."""
    if _NUMBER.fullmatch(text.strip()) is None:
        return None
    text = text.strip()
    digits = text.lstrip("+-")
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    try:
        return int(text, base)
    except ValueError:
        return None


def known(name: str) -> bool:
    """Whether NCCL has such an NCCL_IB variable, today or once."""
    return name in IB_NUMBERS or name in IB_WORDS or name in IB_OLD or name.startswith(_FAMILIES)


def closest(name: str, names: Collection[str]) -> str:
    """The known name that is most like this one; empty when none is."""
    found = difflib.get_close_matches(name, names, n=1, cutoff=_CLOSE)
    return found[0] if found else ""
