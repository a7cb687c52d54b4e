"""Writer of the steer page, exactly as nccl_plugin/pages/steer_page.h lays it out.

The file is created whole and renamed into place once; later writes, also of later daemons, go into
the same file, so that a reader that holds it open goes on reading. A write is: sequence odd, the
used part, sequence even, each by one `pwrite`.

A fence on the page is the incarnation of a fabric-run, none of whose processes may take part in
anything any more. It holds in every mode.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fabricd.steer.policy import PathEntry, Plan, RailEntry, RdmaEntry
from telemetry.events import LinkState
from telemetry.service import durable

MAGIC = 0x52545346  # "FSTR"
VERSION = 1
PAGE_SIZE = 65536
MAX_RAILS = 32
MAX_PATHS = 960
MAX_FENCES = 4096
STALE_NS = 3_000_000_000
WEIGHT_FULL = 1000
CRC_FROM = 24

# name → format; offsets follow from the order (little-endian, no padding by construction).
HEADER = {
    "magic": "I", "version": "H", "header_size": "H", "seq": "Q", "page_size": "I", "crc": "I",
    "heartbeat_ns": "Q", "incarnation": "Q", "generation": "Q", "rail_count": "I",
    "path_count": "I", "mode": "I", "fence_count": "I", "fence_crc": "I", "reserved": "60s",
}  # fmt: skip
RAIL = {
    "netdev": "16s", "epoch": "I", "weight": "H", "state": "B", "reserved0": "B",
    "since_ns": "Q", "rdma_weight": "H", "rdma_state": "B", "rdma_given": "B", "reserved": "28s",
}  # fmt: skip
PATH = {
    "netdev": "16s", "remote": "16s", "epoch": "I", "weight": "H", "state": "B", "reserved0": "B",
    "since_ns": "Q", "rdma_weight": "H", "rdma_state": "B", "rdma_given": "B", "reserved": "12s",
}  # fmt: skip

_HEADER = struct.Struct("<" + "".join(HEADER.values()))
_RAIL = struct.Struct("<" + "".join(RAIL.values()))
_PATH = struct.Struct("<" + "".join(PATH.values()))
_SEQ = struct.Struct("<Q")
_FENCE_SIZE = 8
SEQ_AT = 8
RAILS_AT = _HEADER.size
PATHS_AT = RAILS_AT + MAX_RAILS * _RAIL.size

Key = tuple[str, str]
_SIXTEEN_DIGITS = re.compile("[0-9a-fA-F]{16}")


def fence_number(incarnation: str) -> int:
    """The 8 bytes by which the plugin knows an incarnation of a fabric-run.

    Of 16 hexadecimal digits their value, of any other text its FNV-1a hash: the same as
    nccl_plugin/host/fenced_runs.h. 0, which names nobody, is of the empty text and sixteen zeros.
    """
    if not incarnation:
        return 0
    if _SIXTEEN_DIGITS.fullmatch(incarnation):
        return int(incarnation, 16)
    value = 0xCBF29CE484222325
    for byte in incarnation.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def offsets(fields: dict[str, str]) -> dict[str, int]:
    """Byte offset of each field of one of the layouts above."""
    out, at = {}, 0
    for name, code in fields.items():
        out[name] = at
        at += struct.calcsize("<" + code)
    return out


class PageError(Exception):
    """Not a valid page, or it cannot be written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A rail's entry (``remote`` empty) or a path's."""

    netdev: str
    remote: str
    epoch: int
    weight: int
    state: LinkState
    since_ns: int
    rdma: RdmaEntry | None = None
    """None: RDMA has this weight, too."""


@dataclass(frozen=True, slots=True)
class PageView:
    """A decoded page."""

    seq: int
    heartbeat_ns: int
    incarnation: int
    generation: int
    mode: int
    rails: tuple[Entry, ...]
    paths: tuple[Entry, ...]
    fences: tuple[int, ...]


def packed_address(text: str) -> bytes:
    """16 bytes: IPv6, or IPv4 mapped (RFC 4291, 2.5.5.2)."""
    address = ipaddress.ip_address(text)
    if address.version == 6:
        return address.packed
    return b"\0" * 10 + b"\xff\xff" + address.packed


def unpacked_address(raw: bytes) -> str:
    """The inverse of `packed_address`."""
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def crc_of(page: bytes, rail_count: int, path_count: int) -> int:
    """CRC-32 over the used part, as the header file says."""
    crc = zlib.crc32(page[CRC_FROM : RAILS_AT + _RAIL.size * rail_count])
    return zlib.crc32(page[PATHS_AT : PATHS_AT + _PATH.size * path_count], crc)


def decode(page: bytes) -> PageView:
    """Check and decode a whole page.

    Raises:
        PageError: wrong in any way (including a write under way).
    """
    if len(page) != PAGE_SIZE:
        raise PageError(f"{len(page)} bytes instead of {PAGE_SIZE}")
    head = dict(zip(HEADER, _HEADER.unpack_from(page), strict=True))
    wanted = {"magic": MAGIC, "version": VERSION, "header_size": RAILS_AT, "page_size": PAGE_SIZE}
    for name, value in wanted.items():
        if head[name] != value:
            raise PageError(f"{name} is {head[name]:#x}, not {value:#x}")
    if head["seq"] % 2:
        raise PageError("being written")
    rails, paths = head["rail_count"], head["path_count"]
    if rails > MAX_RAILS or paths > MAX_PATHS:
        raise PageError(f"{rails} rails, {paths} paths")
    if head["fence_count"] > MAX_FENCES:
        raise PageError(f"{head['fence_count']} fences")
    fences_at = PAGE_SIZE - _FENCE_SIZE * head["fence_count"]
    if PATHS_AT + _PATH.size * paths > fences_at:
        raise PageError(f"{paths} paths and {head['fence_count']} fences overlap")
    if crc_of(page, rails, paths) != head["crc"]:
        raise PageError("CRC does not match")
    if zlib.crc32(page[fences_at:]) != head["fence_crc"]:
        raise PageError("CRC of the fences does not match")
    try:
        return PageView(
            head["seq"],
            head["heartbeat_ns"],
            head["incarnation"],
            head["generation"],
            head["mode"],
            tuple(_rail(_RAIL.unpack_from(page, RAILS_AT + i * _RAIL.size)) for i in range(rails)),
            tuple(_path(_PATH.unpack_from(page, PATHS_AT + i * _PATH.size)) for i in range(paths)),
            struct.unpack(f"<{head['fence_count']}Q", page[fences_at:]),
        )
    except ValueError as error:
        raise PageError(str(error)) from error


def _rail(raw: tuple[bytes, int, int, int, int, int, int, int, int, bytes]) -> Entry:
    netdev, epoch, weight, state, _, since, *rdma, _ = raw
    return Entry(_text(netdev), "", epoch, weight, LinkState(state), since, _rdma(*rdma))


def _path(raw: tuple[bytes, bytes, int, int, int, int, int, int, int, int, bytes]) -> Entry:
    netdev, remote, epoch, weight, state, _, since, *rdma, _ = raw
    address = unpacked_address(remote)
    return Entry(_text(netdev), address, epoch, weight, LinkState(state), since, _rdma(*rdma))


def _rdma(weight: int, state: int, given: int) -> RdmaEntry | None:
    return RdmaEntry(LinkState(state), weight) if given else None


def _packed(rdma: RdmaEntry | None) -> tuple[int, int, int]:
    return (0, 0, 0) if rdma is None else (rdma.weight, rdma.state, 1)


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "strict")


@dataclass(slots=True)
class _Remembered:
    weight: int
    state: LinkState
    rdma: RdmaEntry | None
    epoch: int
    since_ns: int


@dataclass(slots=True)
class SteerPage:
    """The page of this host. One writer; not thread-safe.

    Attributes:
        write_errors: failed writes so far (a failed write changes nothing a reader accepts).
        taken_over: entries of the page found at `open`, an earlier daemon's.
        fences: on the page; at first those found there, so that no restart drops one.
    """

    path: Path
    incarnation: int
    write_errors: int = 0
    generation: int = 0
    taken_over: tuple[Entry, ...] = ()
    fences: tuple[int, ...] = ()
    _fd: int = -1
    _seq: int = 0
    _known: dict[Key, _Remembered] = field(default_factory=dict)
    _last: tuple[Plan, int] | None = None

    def open(self, now: int) -> None:
        """Take over the existing page, or create one.

        Raises:
            PageError: neither is possible.
        """
        try:
            self._take_over()
        except (OSError, PageError):
            self._create(now)

    def publish(self, plan: Plan, mode: int, now: int) -> bool:
        """Write the plan, or only a heartbeat when nothing changed.

        Args:
            plan: what finds no room (`fit`) is left out.
            mode: 0 observe, 1 steer, 2 migrate.
            now: CLOCK_MONOTONIC ns.

        Returns:
            True when an entry or the mode changed.

        Raises:
            PageError: not written; a later call tries again.
        """
        plan = self.fit(plan)
        changed = (plan, mode) != self._last
        if changed:
            self.generation += 1
            self._remember(plan, now)
        self._store(plan, mode, now)
        self._last = (plan, mode)
        return changed

    def fit(self, plan: Plan) -> Plan:
        """The part of a plan that the page holds: 32 rails, 960 paths, fewer beside many fences."""
        room = (PAGE_SIZE - PATHS_AT - _FENCE_SIZE * len(self.fences)) // _PATH.size
        return Plan(plan.rails[:MAX_RAILS], plan.paths[: min(MAX_PATHS, room)])

    def set_fences(self, incarnations: Iterable[str], now: int) -> None:
        """Write all fences that hold, in the place of those on the page.

        Args:
            incarnations: of fabric-runs; what `fence_number` calls 0 is left out.
            now: CLOCK_MONOTONIC ns.

        Raises:
            PageError: too many, nothing was published yet, or not written. What the page says has
                not changed; call again.
        """
        fences = tuple(dict.fromkeys(n for n in map(fence_number, incarnations) if n != 0))
        if len(fences) > MAX_FENCES:
            raise PageError(f"{self.path}: {len(fences)} fences; {MAX_FENCES} find room")
        if self._last is None:
            raise PageError(f"{self.path}: not written yet")
        if fences == self.fences:
            return
        before, self.fences = self.fences, fences
        self.generation += 1
        try:
            self.publish(*self._last, now)
        except PageError:
            self.fences = before
            raise

    def _store(self, plan: Plan, mode: int, now: int) -> None:
        try:
            if self._moved():
                self._create(now)
            self._write(plan, mode, now)
        except OSError as error:
            self.write_errors += 1
            raise PageError(f"{self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; it stays, for readers that hold it and for the next daemon."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take_over(self) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_size != PAGE_SIZE:
                raise PageError("wrong size")
            page = bytearray(os.pread(fd, PAGE_SIZE, 0))
            self._seq = _SEQ.unpack_from(page, SEQ_AT)[0]
            if self._seq % 2:
                # The last writer died in the middle of a write: its content is not to be trusted,
                # its file is.
                self._seq += 1
            else:
                old = decode(bytes(page))
                self.generation = old.generation
                self.taken_over = (*old.rails, *old.paths)
                self.fences = old.fences
                for entry in self.taken_over:
                    self._known[entry.netdev, entry.remote] = _Remembered(
                        entry.weight, entry.state, entry.rdma, entry.epoch, entry.since_ns
                    )
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _create(self, now: int) -> None:
        """A new, whole file under the page's name."""
        self.close()
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        self._seq += self._seq % 2
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = durable.create(temporary, 0o644)
            try:
                os.posix_fallocate(fd, 0, PAGE_SIZE)
                self._fd = fd
                self._write(Plan(()), 0, now)
                temporary.rename(self.path)
            except BaseException:
                self._fd = -1
                os.close(fd)
                raise
        except OSError as error:
            raise PageError(f"{self.path}: {error.strerror}") from error

    def _moved(self) -> bool:
        """Whether somebody removed or replaced the file we write to."""
        if self._fd < 0:
            return True
        try:
            there, ours = self.path.stat(), os.fstat(self._fd)
        except OSError:
            return True
        return (there.st_ino, there.st_dev) != (ours.st_ino, ours.st_dev) or (
            ours.st_size != PAGE_SIZE
        )

    def _remember(self, plan: Plan, now: int) -> None:
        """Raise the epochs of the entries that changed."""
        entries: dict[Key, RailEntry | PathEntry] = {(r.netdev, ""): r for r in plan.rails}
        entries |= {(p.netdev, p.remote): p for p in plan.paths}
        for key, entry in entries.items():
            old = self._known.get(key)
            if old is None:
                self._known[key] = _Remembered(entry.weight, entry.state, entry.rdma, 1, now)
            elif (old.weight, old.state, old.rdma) != (entry.weight, entry.state, entry.rdma):
                epoch = (old.epoch + 1) & 0xFFFFFFFF
                self._known[key] = _Remembered(entry.weight, entry.state, entry.rdma, epoch, now)
        for key, old in self._known.items():
            # A path without an entry follows its rail: remember that this was a change.
            if key not in entries and (old.weight != WEIGHT_FULL or old.rdma is not None):
                epoch = (old.epoch + 1) & 0xFFFFFFFF
                self._known[key] = _Remembered(WEIGHT_FULL, LinkState.UP, None, epoch, now)

    def _write(self, plan: Plan, mode: int, now: int) -> None:
        rails = b"".join(self._pack_rail(entry) for entry in plan.rails)
        paths = b"".join(self._pack_path(entry) for entry in plan.paths)
        fences = struct.pack(f"<{len(self.fences)}Q", *self.fences)
        values = (
            MAGIC, VERSION, RAILS_AT, self._seq + 1, PAGE_SIZE, 0, now, self.incarnation,
            self.generation, len(plan.rails), len(plan.paths), mode,
            len(self.fences), zlib.crc32(fences), b"",
        )  # fmt: skip
        head = bytearray(_HEADER.pack(*values))
        crc = zlib.crc32(paths, zlib.crc32(bytes(head[CRC_FROM:]) + rails))
        struct.pack_into("<I", head, offsets(HEADER)["crc"], crc)
        self._put(_SEQ.pack(self._seq + 1), SEQ_AT)
        if paths:
            self._put(paths, PATHS_AT)
        if fences:
            self._put(fences, PAGE_SIZE - len(fences))
        self._put(bytes(head) + rails, 0)
        self._put(_SEQ.pack(self._seq + 2), SEQ_AT)
        self._seq += 2

    def _put(self, data: bytes, at: int) -> None:
        if os.pwrite(self._fd, data, at) != len(data):
            raise OSError(28, "short write")

    def _pack_rail(self, entry: RailEntry) -> bytes:
        known = self._known[entry.netdev, ""]
        return _RAIL.pack(
            entry.netdev.encode()[:15],
            known.epoch,
            entry.weight,
            entry.state,
            0,
            known.since_ns,
            *_packed(entry.rdma),
            b"",
        )

    def _pack_path(self, entry: PathEntry) -> bytes:
        known = self._known[entry.netdev, entry.remote]
        return _PATH.pack(
            entry.netdev.encode()[:15], packed_address(entry.remote), known.epoch, entry.weight,
            entry.state, 0, known.since_ns, *_packed(entry.rdma), b"",
        )  # fmt: skip
