"""A page in a file with one writer and any number of readers, who wait for nobody.

The page holds the same record twice. One of the two holds; the writer fills in the other, then says
that this one holds (a latch, as in the kernel's ``seqcount_latch_t``). A writer that dies in
between, or is not scheduled, keeps nobody waiting. The file is created whole and renamed into place
and never cut, so a mapping of it stays sound; a writer takes over the page that it finds.

Layout: magic u32 | version u16 | used u16 | seq u64 | record | record. The first word of a record
is a check: the exclusive or of all its other words and a salt.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SALT: Final = 0x9E3779B97F4A7C15
SIZE: Final = 4096
HEAD_FIELDS: Final = {"magic": "I", "version": "H", "used": "H", "seq": "Q"}
_HEAD: Final = struct.Struct("<" + "".join(HEAD_FIELDS.values()))
_SEQ: Final = struct.Struct("<Q")
SEQ_AT: Final = 8
RECORDS_AT: Final = _HEAD.size


def check(record: bytes | bytearray) -> int:
    """What the first word of a record has to be."""
    value = SALT
    for word in struct.unpack(f"<{len(record) // 8}Q", record)[1:]:
        value ^= word
    return value


def seal(record: bytes) -> bytes:
    """The record with its check filled in."""
    return _SEQ.pack(check(record)) + record[_SEQ.size :]


def is_sealed(record: bytes) -> bool:
    """False: it is being written, or damaged."""
    return record[: _SEQ.size] == _SEQ.pack(check(record))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of page."""

    name: str
    """Of its file."""
    magic: int
    version: int
    record: int
    """Bytes; a multiple of 8."""

    @property
    def used(self) -> int:
        """Bytes of the page that mean something."""
        return RECORDS_AT + 2 * self.record

    @property
    def sound(self) -> bytes:
        """How such a page begins."""
        return _HEAD.pack(self.magic, self.version, self.used, 0)[:SEQ_AT]

    def place(self, seq: int) -> slice:
        """Where the record lies that holds after ``seq`` writes."""
        at = RECORDS_AT + (seq & 1) * self.record
        return slice(at, at + self.record)


class LatchError(Exception):
    """The file is no such page; the text says why."""


class Mapped:
    """A page as a reader has it, who goes by its second word (``seq``).

    Attributes:
        page: all of its bytes.
        words: the same in words of 8 bytes.
    """

    def __init__(self, path: Path, kind: Kind, what: str) -> None:
        """Map it.

        Args:
            path: of the file.
            kind: of the page.
            what: "a clock page", for the error.

        Raises:
            LatchError: there is none, or none of this version.
        """
        self._path = path
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise LatchError(f"{path}: {error.strerror}") from error
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_size != SIZE:
                raise LatchError(f"{path}: not {what}")
            self.page = mmap.mmap(fd, SIZE, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._file = info.st_dev, info.st_ino
        if self.page[: len(kind.sound)] != kind.sound:
            self.page.close()
            raise LatchError(f"{path}: not {what} of version {kind.version}")
        self.words = memoryview(self.page).cast("Q")

    def replaced(self) -> bool:
        """Whether another file has its place: nobody writes this one any more."""
        try:
            info = self._path.stat()
        except OSError:
            return False
        return (info.st_dev, info.st_ino) != self._file

    def close(self) -> None:
        """Unmap."""
        self.words.release()
        self.page.close()


class LatchFile:
    """The writer. One at a time; whoever starts it sees to that."""

    def __init__(self, kind: Kind, directory: Path, nothing: bytes) -> None:
        """Take over the page that is there, so that readers who hold it go on; or make one.

        Args:
            kind: of the page.
            directory: where its file lies.
            nothing: the sealed record of a page on which nothing was written yet.

        Raises:
            OSError: it cannot be written.
        """
        self.kind, self.path = kind, directory / kind.name
        self._nothing = nothing
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            self._fd = self._make()
        info = os.fstat(self._fd)
        data = b""
        if stat.S_ISREG(info.st_mode) and info.st_size == SIZE:
            data = os.pread(self._fd, kind.used, 0)
        if not data.startswith(kind.sound):
            os.close(self._fd)
            self._fd = self._make()
            data = os.pread(self._fd, kind.used, 0)
        self._seq = _SEQ.unpack_from(data, SEQ_AT)[0]
        self.found = data[kind.place(self._seq)]
        """The record that held when the page was opened."""

    def _make(self) -> int:
        draft = self.path.with_name(f".{self.path.name}")
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(draft, flags, 0o644)
        os.fchmod(fd, 0o644)  # whatever the umask: every job reads it
        os.pwrite(fd, (self.kind.sound + _SEQ.pack(0) + 2 * self._nothing).ljust(SIZE, b"\0"), 0)
        draft.rename(self.path)
        return fd

    def write(self, record: bytes) -> None:
        """Publish a sealed record: that which does not hold is written, then it does."""
        self._seq = (self._seq + 1) & (1 << 64) - 1
        os.pwrite(self._fd, record, self.kind.place(self._seq).start)
        os.pwrite(self._fd, _SEQ.pack(self._seq), SEQ_AT)

    def close(self) -> None:
        """Let go of it; it stays, and grows old. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
