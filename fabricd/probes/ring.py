"""Typed reader over the prober's mapped ring file.

The file is created whole and renamed into place, and never truncated; still everything in it is
checked: a file that is short, of another version or inconsistent raises ``RingError``, and a
record or row that makes no sense is counted in ``RingReader.corrupt`` and skipped.

Rules of the shared memory: one writer. A record is whole when its own index says so before and
after the copy; a row is guarded by a sequence that is odd while it is written.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fabricd.probes import decode
from fabricd.probes import layout as lay
from fabricd.probes.records import (
    EventRecord,
    LinkRow,
    PathRow,
    ProbeSample,
    RingHeader,
)

_R = TypeVar("_R")
_LAST_HEARD = [field.name for field in lay.PATH_ROW.fields].index("last_heard_ns")
_PATH_FLAGS = [field.name for field in lay.PATH_ROW.fields].index("flags")
_TRIES = 64
_HEAD_WORD = 8
_NAMES = tuple(f.name for f in lay.RING_HEADER.fields)
# What never changes in a ring of this version.
_FIXED = {
    "magic": lay.RING_MAGIC,
    "version": lay.RING_VERSION,
    "header_size": lay.HEADER_SIZE,
    "file_size": lay.RING_FILE_SIZE,
    "link_row_size": lay.LINK_ROW.size,
    "path_row_size": lay.PATH_ROW.size,
    "max_links": lay.MAX_LINKS,
    "max_paths": lay.MAX_PATHS,
    "event_slots": lay.EVENT_SLOTS,
    "sample_slots": lay.SAMPLE_SLOTS,
    "path_offset": lay.PATH_OFFSET,
    "event_offset": lay.EVENT_OFFSET,
    "sample_offset": lay.SAMPLE_OFFSET,
}
_FIXED_BYTES = struct.pack(
    "<" + "".join(f.code for f in lay.RING_HEADER.fields[: len(_FIXED)]), *_FIXED.values()
)
_VARIABLE = struct.Struct(
    f"<{len(_FIXED_BYTES)}x" + "".join(f.code for f in lay.RING_HEADER.fields[len(_FIXED) :])
)
_EPOCH_AT = lay.RING_HEADER.offset("config_epoch")
_EPOCH_SIZE = 4


class RingError(Exception):
    """The ring file cannot be used; the message says why and names the file."""


def _difference(data: bytes) -> str:
    """What is not as in every ring of this version."""
    values = dict(zip(_NAMES, lay.RING_HEADER.struct.unpack(data), strict=False))
    return next(
        f"{name} is {values[name]:#x}, not {value:#x}"
        for name, value in _FIXED.items()
        if values[name] != value
    )


class _Cursor:
    """A reader's place in one of the two rings."""

    def __init__(self, record: lay.Record, offset: int, slots: int, head_name: str) -> None:
        self.record = record
        self.offset = offset
        self.slots = slots
        self.head_at = lay.RING_HEADER.offset(head_name)
        self.next = 0
        self.lost = 0


class RingReader:
    """One reader with its own place in the event and sample rings. Not thread-safe."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        """Map ``path`` and start behind the newest record, or with ``from_start`` at the first.

        Those from the start that are overwritten already count as lost.

        Raises:
            RingError: missing, not a regular file, short, or not a ring of this version.
        """
        self.path = path
        self.corrupt = 0
        """Records and rows refused."""
        self._map: mmap.mmap | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise RingError(f"{path}: {error.strerror}") from error
        try:
            info = os.fstat(self._fd)
            self._identity = (info.st_dev, info.st_ino)
            if not stat.S_ISREG(info.st_mode):
                raise RingError(f"{path}: not a regular file")
            self._check_size()
            self._map = mmap.mmap(
                self._fd, lay.RING_FILE_SIZE, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ
            )
            self._events = _Cursor(
                lay.EVENT_RECORD, lay.EVENT_OFFSET, lay.EVENT_SLOTS, "event_head"
            )
            self._samples = _Cursor(
                lay.SAMPLE_RECORD, lay.SAMPLE_OFFSET, lay.SAMPLE_SLOTS, "sample_head"
            )
            header = self.header()
            if not from_start:
                self._events.next = header.event_head
                self._samples.next = header.sample_head
        except BaseException:
            self.close()
            raise

    @property
    def lost_events(self) -> int:
        """Events overwritten before this reader came to them."""
        return self._events.lost

    @property
    def lost_samples(self) -> int:
        """Samples overwritten before this reader came to them."""
        return self._samples.lost

    def header(self) -> RingHeader:
        """The header as it is now; raises RingError when it is not sane."""
        data = self._copy(0, lay.RING_HEADER.size)
        if not data.startswith(_FIXED_BYTES):
            raise RingError(f"{self.path}: {_difference(data)}: not a ring of this version")
        (pid, flags, incarnation, start, beat, events, samples, epoch, links, paths, misses,
         interval, trains, due_times_refused, sent, received, stalls, stall, stall_max, errors,
         *refused, clock_read, more_links, more_paths) = _VARIABLE.unpack(data)  # fmt: skip
        if links + more_links > lay.MAX_LINKS or paths + more_paths > lay.MAX_PATHS:
            raise RingError(
                f"{self.path}: {links}+{more_links} links and {paths}+{more_paths} paths cannot be"
            )
        # In the order of RingHeader; it is read many times a second.
        return RingHeader(
            lay.RING_VERSION, pid, incarnation, start, beat, bool(flags & lay.HEADER_RUNNING),
            epoch, links, paths, interval, misses, trains, bool(flags & lay.HEADER_REALTIME),
            bool(flags & lay.HEADER_LOCKED), events, samples, sent, received, stalls, stall,
            stall_max, errors, tuple(refused),
            bool(flags & lay.HEADER_SYNCHRONIZED), due_times_refused, clock_read,
            more_links, more_paths,
        )  # fmt: skip

    def links(self, *, rdma: bool = False) -> list[LinkRow]:
        """All configured links, by index. Rows that make no sense are left out and counted.

        Args:
            rdma: RDMA links too, after the others.
        """
        return self._table(
            lay.LINK_ROW,
            lay.LINK_OFFSET,
            lambda header: header.link_count + rdma * header.rdma_link_count,
            decode.link_row,
        )

    def paths(self, *, rdma: bool = False) -> list[PathRow]:
        """All configured paths, by index. Rows that make no sense are left out and counted.

        Args:
            rdma: paths of RDMA links too, after the others.
        """
        return self._table(
            lay.PATH_ROW,
            lay.PATH_OFFSET,
            lambda header: header.path_count + rdma * header.rdma_path_count,
            decode.path_row,
        )

    def last_heard_ns(self, index: int) -> int:
        """Of one path, as its row has it: for who looks often. 0: never, or it is being written."""
        at = lay.PATH_OFFSET + index * lay.PATH_ROW.size
        row = self._row(self._mapped(), lay.PATH_ROW, at)
        return 0 if row is None else int(row[_LAST_HEARD])

    def carries_trains(self, index: int) -> bool:
        """Whether one path carries trains, likewise; False while its row is being written."""
        at = lay.PATH_OFFSET + index * lay.PATH_ROW.size
        row = self._row(self._mapped(), lay.PATH_ROW, at)
        return row is not None and bool(int(row[_PATH_FLAGS]) & lay.PATH_CLOCK)

    def events(self, limit: int = 4096) -> list[EventRecord]:
        """New events since the last call, oldest first; overwritten ones add to lost_events."""
        return self._take(self._events, limit, decode.event)

    def samples(self, limit: int = 4096) -> list[ProbeSample]:
        """New samples since the last call, oldest first; overwritten ones add to lost_samples."""
        return self._take(self._samples, limit, decode.sample)

    def sample_head(self) -> int:
        """Samples ever written."""
        return self._head(self._samples)

    def sample_bytes(self, first: int, count: int) -> bytes:
        """Records ``first`` to ``first + count - 1`` of the sample ring as they lie there now.

        Whoever decodes them checks each one's index (`fabricd.probes.stamps`).

        Raises:
            RingError: the file is closed, or no longer as long as it was.
        """
        self._mapped()
        size, slots = self._samples.record.size, self._samples.slots
        at = first % slots
        before_end = min(count, slots - at)
        data = os.pread(self._fd, before_end * size, self._samples.offset + at * size)
        data += os.pread(self._fd, (count - before_end) * size, self._samples.offset)
        if len(data) != count * size:
            raise RingError(f"{self.path}: short")
        return data

    def replaced(self) -> bool:
        """True when another file (a restarted prober's), or none, now has the ring's name."""
        try:
            info = self.path.lstat()
        except OSError:
            return True
        return (info.st_dev, info.st_ino) != self._identity

    def close(self) -> None:
        """Unmap; idempotent."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _check_size(self) -> None:
        # Touching a mapping beyond its file's end is a SIGBUS: ask first.
        size = os.fstat(self._fd).st_size
        if size != lay.RING_FILE_SIZE:
            raise RingError(f"{self.path}: {size} bytes, not {lay.RING_FILE_SIZE}")

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            raise RingError(f"{self.path}: closed")
        self._check_size()
        return self._map

    def _copy(self, offset: int, size: int) -> bytes:
        return self._mapped()[offset : offset + size]

    def _head(self, cursor: _Cursor) -> int:
        return int.from_bytes(self._copy(cursor.head_at, _HEAD_WORD), "little")

    def _table(
        self,
        record: lay.Record,
        offset: int,
        count: Callable[[RingHeader], int],
        build: Callable[[int, tuple[Any, ...]], _R],
    ) -> list[_R]:
        for _ in range(_TRIES):
            before = self.header()
            mapped = self._mapped()
            rows: list[_R] = []
            for index, values in enumerate(self._values(mapped, record, offset, count(before))):
                if values is None:
                    self.corrupt += 1
                    continue
                try:
                    rows.append(build(index, values))
                except ValueError:
                    self.corrupt += 1
            epoch = mapped[_EPOCH_AT : _EPOCH_AT + _EPOCH_SIZE]
            if int.from_bytes(epoch, "little") == before.config_epoch:
                return rows
        raise RingError(f"{self.path}: the configuration changes faster than it can be read")

    @classmethod
    def _values(
        cls, mapped: mmap.mmap, record: lay.Record, offset: int, count: int
    ) -> list[tuple[Any, ...] | None]:
        """A table copied at once; rows that were being written are read again, each by itself."""
        end, step = offset + count * record.size, record.size // _HEAD_WORD
        with memoryview(mapped) as whole, whole[offset:end] as raw, raw.cast("Q") as words:
            before = words[::step].tolist()
            copy = raw.tobytes()
            after = words[::step].tolist()
        rows: list[tuple[Any, ...] | None] = list(record.struct.iter_unpack(copy))
        for index, (row, first, last) in enumerate(zip(rows, before, after, strict=True)):
            if row is None or not first == row[0] == last or first & 1:
                rows[index] = cls._row(mapped, record, offset + index * record.size)
        return rows

    @staticmethod
    def _row(mapped: mmap.mmap, record: lay.Record, at: int) -> tuple[Any, ...] | None:
        for _ in range(_TRIES):
            seq = mapped[at : at + _HEAD_WORD]
            if seq[0] & 1:
                os.sched_yield()
                continue
            data = mapped[at : at + record.size]
            if mapped[at : at + _HEAD_WORD] == seq and data[:_HEAD_WORD] == seq:
                return record.struct.unpack(data)
        return None

    def _take(
        self, cursor: _Cursor, limit: int, build: Callable[[int, tuple[Any, ...]], _R]
    ) -> list[_R]:
        head = self._head(cursor)
        if head < cursor.next:
            # The writer's count only grows: what lies there is not its work.
            self.corrupt += 1
            cursor.next = head
            return []
        oldest = max(0, head - (cursor.slots - 1))
        if cursor.next < oldest:
            cursor.lost += oldest - cursor.next
            cursor.next = oldest
        out: list[_R] = []
        size = cursor.record.size
        mapped = self._mapped()
        for number in range(cursor.next, min(head, cursor.next + limit)):
            at = cursor.offset + (number % cursor.slots) * size
            data = mapped[at : at + size]
            whole = (number + 1).to_bytes(_HEAD_WORD, "little")
            cursor.next = number + 1
            if data[:_HEAD_WORD] != whole or mapped[at : at + _HEAD_WORD] != whole:
                # Overtaken by the writer while reading, or damaged.
                if self._head(cursor) - number >= cursor.slots:
                    cursor.lost += 1
                else:
                    self.corrupt += 1
                continue
            try:
                out.append(build(number, cursor.record.struct.unpack(data)))
            except ValueError:
                self.corrupt += 1
        return out
