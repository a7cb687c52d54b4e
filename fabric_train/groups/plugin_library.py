"""``libfabric-collectives.so``: where it lies, and its C interface through ctypes.

The wheel of fabric_train has no native part: the library comes with the network plugin. Calls of
ctypes release the GIL, so a call that blocks blocks its own thread alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

COLLECTIVES = "FABRIC_COLLECTIVES"  # path of the library
PLUGIN = "NCCL_NET_PLUGIN"  # as NCCL has it: a path, or a name
_COLLECTIVES_FILE = "libfabric-collectives.so"
_VERSION = 1
_ERROR_SIZE = 1000


class Kind(IntEnum):
    """Operations; numbers of the C interface."""

    ALL_REDUCE = 0
    BROADCAST = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    SEND = 4
    RECEIVE = 5


class ElementType(IntEnum):
    """Element types; numbers of the C interface."""

    U8 = 0
    I8 = 1
    I32 = 2
    I64 = 3
    F16 = 4
    BF16 = 5
    F32 = 6
    F64 = 7


class Reduction(IntEnum):
    """Reductions; numbers of the C interface. An average is of floats alone."""

    SUM = 0
    AVERAGE = 1
    MINIMUM = 2
    MAXIMUM = 3
    PRODUCT = 4


class LibraryMissingError(Exception):
    """A library is not there, or it is not what its name says."""


@dataclass(frozen=True)
class Task:
    """One operation. ``count``: elements, per rank where ranks contribute parts.

    ``input`` and ``output`` are addresses of memory that stays valid until the operation has ended.
    """

    kind: Kind
    element: ElementType
    count: int
    input: int = 0
    output: int = 0
    reduction: Reduction = Reduction.SUM
    peer: int = 0
    tag: int = 0


class _Task(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("tag", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("count", ctypes.c_uint64),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
    )


class _Completion(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int64), ("failed", ctypes.c_int32), ("error", ctypes.c_char * 500))


class NativeGroup:
    """One rank of a group. All methods may be called from any thread."""

    def __init__(self, plugin: Path, library: Path, rank: int, world: int) -> None:
        """Load the plugin and listen.

        Raises ``LibraryMissingError``; ``RuntimeError`` where the plugin cannot be used.
        """
        self._calls = load_library(library)
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        self._group = self._calls.fabric_collectives_open(
            os.fsencode(plugin), rank, world, 0, error, _ERROR_SIZE
        )
        if self._group < 0:
            raise RuntimeError(f"{plugin}: {_text(error)}")

    def address(self) -> bytes:
        """What the other ranks need to connect to this one."""
        size = self._calls.fabric_collectives_address(self._group, None, 0)
        out = ctypes.create_string_buffer(max(size, 1))
        self._calls.fabric_collectives_address(self._group, out, size)
        return out.raw[:size]

    def connect(self, addresses: Sequence[bytes], timeout_s: float) -> None:
        """Connect to all ranks, whose ``addresses`` are in their order. Raises ``RuntimeError``."""
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        sizes = (ctypes.c_size_t * len(addresses))(*map(len, addresses))
        joined = b"".join(addresses)
        if self._calls.fabric_collectives_connect(
            self._group, joined, sizes, timeout_s, error, _ERROR_SIZE
        ):
            raise RuntimeError(_text(error))

    def start(self, task: Task) -> int:
        """The number of the operation that starts.

        Raises ``ValueError`` for a task that cannot be, ``RuntimeError`` where the group has ended.
        """
        error = ctypes.create_string_buffer(_ERROR_SIZE)
        native = _Task(
            task.kind, task.element, task.reduction, task.peer, task.tag, 0,
            task.count, task.input, task.output,
        )  # fmt: skip
        number: int = self._calls.fabric_collectives_start(
            self._group, ctypes.byref(native), error, _ERROR_SIZE
        )
        if number == -1:
            raise ValueError(_text(error))
        if number < 0:
            raise RuntimeError(_text(error))
        return number

    def next(self) -> tuple[int, str] | None:
        """Wait until an operation has ended: its number, and its error or an empty text.

        None: the group has ended, and none of its memory is used any more.
        """
        one = _Completion()
        if not self._calls.fabric_collectives_next(self._group, ctypes.byref(one)):
            return None
        return one.id, one.error.decode(errors="replace") if one.failed else ""

    def abort(self, reason: str) -> None:
        """End all operations with an error; returns at once."""
        self._calls.fabric_collectives_abort(self._group, reason.encode())

    def close(self) -> None:
        """Abort, wait until the group has ended (seconds where a peer is silent), and forget it."""
        self._calls.fabric_collectives_close(self._group)


def find_plugin(environment: Mapping[str, str]) -> Path:
    """The network plugin that NCCL would load. Raises ``LibraryMissingError``."""
    named = environment.get(PLUGIN, "")
    if "/" in named:
        return _existing([Path(named)], f"{PLUGIN}={named}")
    file = named if named.endswith(".so") else f"libnccl-net-{named or 'fabric'}.so"
    return _existing([place / file for place in _directories(environment)], "network plugin")


def find_collectives(environment: Mapping[str, str], plugin: Path) -> Path:
    """The library of collectives: beside the plugin, unless it is named.

    Raises ``LibraryMissingError``.
    """
    if named := environment.get(COLLECTIVES):
        return _existing([Path(named)], f"{COLLECTIVES}={named}")
    places = [plugin.parent, *_directories(environment)]
    return _existing(
        [place / _COLLECTIVES_FILE for place in dict.fromkeys(places)],
        f"library of collectives ({COLLECTIVES} names one)",
    )


def _directories(environment: Mapping[str, str]) -> Iterator[Path]:
    for place in environment.get("LD_LIBRARY_PATH", "").split(":"):
        if place:
            yield Path(place)
    yield Path(sys.prefix) / "lib"  # where fabricd's wheel puts them
    yield Path(__file__).resolve().parents[2] / "build" / "release" / "nccl_plugin"


def _existing(places: Sequence[Path], what: str) -> Path:
    for place in places:
        if place.is_file():
            return place.absolute()
    raise LibraryMissingError(f"no {what}: looked for {', '.join(map(str, places))}")


def load_library(path: Path) -> Any:
    """The C interface of the library. Raises ``LibraryMissingError``."""
    try:
        calls = ctypes.CDLL(os.fspath(path))
        version = calls.fabric_collectives_version()
    except (OSError, AttributeError) as error:
        raise LibraryMissingError(f"{path} is no library of collectives: {error}") from None
    if version != _VERSION:
        raise LibraryMissingError(f"{path} has version {version} of its interface, not {_VERSION}")
    text, size = ctypes.c_char_p, ctypes.c_size_t
    group = ctypes.c_int64
    calls.fabric_collectives_open.argtypes = [
        text, ctypes.c_int, ctypes.c_int, ctypes.c_int, text, size,
    ]  # fmt: skip
    calls.fabric_collectives_open.restype = group
    calls.fabric_collectives_address.argtypes = [group, text, size]
    calls.fabric_collectives_address.restype = ctypes.c_int64
    calls.fabric_collectives_connect.argtypes = [
        group, text, ctypes.POINTER(size), ctypes.c_double, text, size,
    ]  # fmt: skip
    calls.fabric_collectives_start.argtypes = [group, ctypes.c_void_p, text, size]
    calls.fabric_collectives_start.restype = ctypes.c_int64
    calls.fabric_collectives_next.argtypes = [group, ctypes.c_void_p]
    calls.fabric_collectives_abort.argtypes = [group, text]
    calls.fabric_collectives_abort.restype = None
    calls.fabric_collectives_close.argtypes = [group]
    calls.fabric_collectives_close.restype = None
    return calls


def _text(error: ctypes.Array[ctypes.c_char]) -> str:
    return error.value.decode(errors="replace")
