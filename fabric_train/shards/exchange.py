"""Ranks give each other the entries of their logs, all at the same time.

Each rank first begins to send all that it has to send, so nobody waits for each other in a circle.
An entry counts when all of it has arrived and the CRC-32 of each chunk is the sender's. What ends
early counts for nothing: the entry before is untouched.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from fabric_train.shards.entry import BadEntryError, Entry, decode
from fabric_train.shards.log import KeptShards
from fabric_train.state.tensor_bytes import memory
from fabric_train.state.transfer import Images, chunks, cut

_TAG = 0x7A12
_FIRST = 4096
"""Bytes of the first message: with most entries there is no second one."""
_HEAD = 12
_MOST = 64 << 20


class Exchange:
    """The entries of one step, of one rank. ``group`` has ``send`` and ``recv``."""

    def __init__(self, group: Any, threads: ThreadPoolExecutor) -> None:  # noqa: ANN401
        self._group = group
        self._threads = threads
        self._works: list[tuple[Any, Tensor]] = []
        self._sums: list[tuple[Sequence[int], list[Any]]] = []

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if isinstance(error, RuntimeError):  # the group is broken, so all of them end
            for work, _data in self._works:
                with contextlib.suppress(RuntimeError):
                    work.wait()

    def post(self, entry: Entry, tensors: Sequence[Tensor], buddies: Sequence[int]) -> None:
        """Begin to send ``entry`` and its ``tensors`` to all of ``buddies``.

        The tensors must not change before `finish` has returned.
        """
        head = _head(entry.encode())
        for to in buddies:
            for part in head:
                self._send(part, to)
        sums = []
        for chunk in chunks(tensors):
            for to in buddies:
                self._send(chunk, to)
            sums.append(self._threads.submit(_sum, memory(chunk), chunk))
        self._sums.append((buddies, sums))

    def post_sums(self) -> None:
        """Begin to send what all chunks of each `post` sum up to."""
        for buddies, waiting in self._sums:
            sums = torch.tensor([one.result() for one in waiting], dtype=torch.int64)
            for to in buddies:
                if sums.numel():
                    self._send(sums, to)

    def receive(self, ward: int, log: KeptShards) -> Arrived:
        """The entry of ``ward``, without its sums. Raises ``RuntimeError``, ``BadEntryError``."""
        first = torch.empty(_FIRST, dtype=torch.uint8)
        self._receive(first, ward)
        data = bytes(memory(first))
        size, crc = int.from_bytes(data[:8]), int.from_bytes(data[8:_HEAD])
        if size > _MOST:
            raise BadEntryError(f"what rank {ward} gives of its shards begins with {size} bytes")
        body = data[_HEAD : _HEAD + size]
        if size > len(body):
            rest = torch.empty(size - len(body), dtype=torch.uint8)
            self._receive(rest, ward)
            body += bytes(memory(rest))
        if zlib.crc32(body) != crc:
            raise BadEntryError(f"what rank {ward} gives of its shards is corrupt")
        entry = decode(body, ward)
        buffers = log.buffers(entry)
        sums = []
        images = Images(buffers)
        for parts in cut(images.sizes):
            chunk = images.buffer(parts)
            self._receive(chunk, ward)
            sums.append(self._threads.submit(_sum, memory(chunk), chunk))
            images.store(parts, chunk)
        return Arrived(entry, buffers, sums)

    def accept(self, arrived: Arrived, log: KeptShards) -> None:
        """Add to ``log`` what has arrived, if it is what was sent. Raises as `receive`."""
        mine = [one.result() for one in arrived.sums]
        if mine:
            theirs = torch.zeros(len(mine), dtype=torch.int64)
            self._receive(theirs, arrived.entry.rank)
            if theirs.tolist() != mine:
                raise BadEntryError(f"shards of rank {arrived.entry.rank} arrive corrupt")
        log.add(arrived.entry, arrived.buffers)

    def finish(self) -> None:
        """Return when all is sent. Raises ``RuntimeError``."""
        for work, _data in self._works:
            work.wait()
        self._works.clear()

    def _send(self, data: Tensor, to: int) -> None:
        self._works.append((self._group.send([data], to, _TAG), data))

    def _receive(self, data: Tensor, source: int) -> None:
        self._group.recv([data], source, _TAG).wait()


class Arrived:
    """An entry that has arrived; whether it is whole is not known yet."""

    def __init__(self, entry: Entry, buffers: list[Tensor], sums: list[Any]) -> None:
        self.entry = entry
        self.buffers = buffers
        self.sums = sums


def hashers() -> ThreadPoolExecutor:
    """Threads for an `Exchange`."""
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1), "fabric-shards")


def _head(body: bytes) -> list[Tensor]:
    if len(body) > _MOST:
        raise BadEntryError(f"the entry of this rank's shards begins with {len(body)} bytes")
    data = len(body).to_bytes(8) + zlib.crc32(body).to_bytes(4) + body
    parts = [data[:_FIRST].ljust(_FIRST, b"\0"), data[_FIRST:]]
    return [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in parts if one]


def _sum(data: memoryview, _owner: Tensor) -> int:
    return zlib.crc32(data)
