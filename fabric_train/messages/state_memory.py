"""Memory of an agent in which a process of the same machine leaves its rank-local states.

The process writes it, and the agent reads it when the process is lost: nobody is woken for a step.
Each state has a place of its own, by its step. A state that was being written when its process was
killed fails its checksum; the states of the steps before it are whole. A *late* state is one of a
step that has begun, and has another place than that which was left at the gate before.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from fabric_train.messages.frames import MAX_BODY

STEPS = 3
"""States that are kept of each rank: of the steps before, at and after the last vote.

A rank may have sent the last of them while another rank's vote on the step before has failed.
"""
_HEAD = struct.Struct("<8sqqqI")  # magic, rank, step, bytes of the body, CRC-32 of all of it
_MAGIC = b"fabstate"
_PLACE = 2 * MAX_BODY  # bytes between two places; memory is used where something was written


@dataclass(frozen=True)
class KeptState:
    """Rank-local state of ``rank`` at the start of ``step``."""

    rank: int
    step: int
    body: bytes


def create(process: str) -> int:
    """The descriptor of an empty memory for ``process``."""
    return os.memfd_create(f"fabric-{process}", os.MFD_CLOEXEC)


def write(descriptor: int, state: KeptState, *, late: bool = False) -> None:
    """Keep ``state``, in the place of the one ``STEPS`` before it.

    Raises ``ValueError`` for a body of more than ``MAX_BODY``, ``OSError`` without memory.
    """
    if len(state.body) > MAX_BODY:
        raise ValueError(f"rank-local state of {len(state.body)} B: at most {MAX_BODY}")
    data = _head(state) + state.body
    offset = (state.step % STEPS + STEPS * late) * _PLACE
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def read(descriptor: int) -> Iterator[KeptState]:
    """All states that are whole; a late one after the other one of its step."""
    for place in range(2 * STEPS):
        head = os.pread(descriptor, _HEAD.size, place * _PLACE)
        if len(head) < _HEAD.size:
            continue
        magic, rank, step, size, _ = _HEAD.unpack(head)
        if magic != _MAGIC or not 0 <= size <= MAX_BODY:
            continue
        body = os.pread(descriptor, size, place * _PLACE + _HEAD.size)
        state = KeptState(rank, step, body)
        if len(body) == size and _head(state) == head:
            yield state


def _head(state: KeptState) -> bytes:
    fields = _MAGIC, state.rank, state.step, len(state.body)
    crc = zlib.crc32(state.body, zlib.crc32(_HEAD.pack(*fields, 0)))
    return _HEAD.pack(*fields, crc)
