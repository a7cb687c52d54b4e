"""Moves the replicated state from one rank to another over the generation's own group.

A manifest first, then the tensors as one byte stream in chunks, then the SHA-256 of all chunks and
the CRC of each. The receiver compares both before it uses anything: a corrupt copy is never
trained on. Chunks are double-buffered, so hashing and the network overlap.
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fabric_train.state import Manifest, ReplicatedState

CHUNK = 4 << 20
_TAG = 0x7A11


class CorruptStateError(Exception):
    """What arrived is not what the source hashed. The text names the chunk."""


def send_state(group: Any, state: ReplicatedState, to: int) -> None:
    """Send to rank ``to``. Raises ``RuntimeError`` where the group is broken."""
    manifest = state.manifest()
    _send_bytes(group, pickle.dumps(manifest), to)
    digest = hashlib.sha256()
    crcs: list[int] = []
    previous: tuple[Any, Tensor] | None = None
    for chunk in _chunks([tensor for _, tensor in state.tensors()]):
        work = group.send([chunk], to, _TAG)
        data = _memory(chunk)
        digest.update(data)
        crcs.append(zlib.crc32(data))
        if previous is not None:
            previous[0].wait()
        previous = (work, chunk)
    if previous is not None:
        previous[0].wait()
    _send_bytes(group, pickle.dumps((digest.digest(), crcs)), to)


def receive_state(group: Any, state: ReplicatedState, source: int) -> int:
    """Receive from rank ``source`` and return the bytes of tensors.

    Raises ``CorruptStateError`` or ``LayoutError``: the tensors may be overwritten then, and this
    process must not go on with them. ``RuntimeError`` where the group is broken: receive again.
    """
    # From a rank of this job: who could forge it already runs code in the job.
    manifest: Manifest = pickle.loads(_receive_bytes(group, source))  # noqa: S301
    tensors = state.accept(manifest)
    total: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    digest = hashlib.sha256()
    crcs: list[int] = []
    sizes = [min(CHUNK, total - start) for start in range(0, total, CHUNK)]
    buffers = [torch.empty(min(CHUNK, total), dtype=torch.uint8) for _ in range(2)]
    writer = _Writer(tensors)
    works = [_receive(group, buffers[i][:size], source) for i, size in enumerate(sizes[:2])]
    for i, size in enumerate(sizes):
        works[i].wait()
        chunk = buffers[i % 2][:size]
        data = _memory(chunk)
        digest.update(data)
        crcs.append(zlib.crc32(data))
        writer.write(chunk)
        if i + 2 < len(sizes):
            works.append(_receive(group, buffers[i % 2][: sizes[i + 2]], source))
    want, want_crcs = pickle.loads(_receive_bytes(group, source))  # noqa: S301
    wrong = [i for i, (a, b) in enumerate(zip(crcs, want_crcs, strict=True)) if a != b]
    if wrong or digest.digest() != want:
        raise CorruptStateError(f"chunk {wrong[:1] or 'unknown'} from rank {source} is corrupt")
    state.apply_scalars(manifest.scalars)
    return total


def _chunks(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The bytes of ``tensors`` in chunks of ``CHUNK``; two are alive at a time."""
    pending: list[Tensor] = []
    size = 0
    for tensor in tensors:
        flat = _bytes_of(tensor.detach().to("cpu"))
        at = 0
        while at < flat.numel():
            part = flat[at : at + CHUNK - size]
            pending.append(part)
            size += part.numel()
            at += part.numel()
            if size == CHUNK:
                yield torch.cat(pending)
                pending, size = [], 0
    if pending:
        yield torch.cat(pending)


class _Writer:
    """Cuts a byte stream back into tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._left = [tensor for tensor in tensors if tensor.numel()]
        self._at = 0

    def write(self, chunk: Tensor) -> None:
        start = 0
        while start < chunk.numel():
            tensor = self._left[0]
            size = tensor.numel() * tensor.element_size()
            count = min(size - self._at, chunk.numel() - start)
            part = chunk[start : start + count]
            if tensor.is_contiguous() and tensor.device.type == "cpu":
                _bytes_of(tensor)[self._at : self._at + count].copy_(part)
            else:
                self._write_whole(tensor, part, size)
            start += count
            self._at += count
            if self._at == size:
                self._left.pop(0)
                self._at = 0

    def _write_whole(self, tensor: Tensor, part: Tensor, size: int) -> None:
        if self._at == 0:
            self._staging = torch.empty(size, dtype=torch.uint8)
        self._staging[self._at : self._at + part.numel()].copy_(part)
        if self._at + part.numel() == size:
            tensor.copy_(self._staging.view(tensor.dtype).view(tensor.shape))


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _memory(chunk: Tensor) -> memoryview:
    # Not Tensor.numpy(): numpy need not be installed.
    return memoryview((ctypes.c_ubyte * chunk.numel()).from_address(chunk.data_ptr())).cast("B")


def _receive(group: Any, buffer: Tensor, source: int) -> Any:
    return group.recv([buffer], source, _TAG)


def _send_bytes(group: Any, data: bytes, to: int) -> None:
    size = torch.tensor([len(data), zlib.crc32(data)])
    group.send([size], to, _TAG).wait()
    group.send([torch.frombuffer(bytearray(data), dtype=torch.uint8)], to, _TAG).wait()


def _receive_bytes(group: Any, source: int) -> bytes:
    head = torch.zeros(2, dtype=torch.int64)
    group.recv([head], source, _TAG).wait()
    size, crc = head.tolist()
    buffer = torch.empty(size, dtype=torch.uint8)
    group.recv([buffer], source, _TAG).wait()
    data = bytes(_memory(buffer))
    if zlib.crc32(data) != crc:
        raise CorruptStateError(f"what rank {source} says about its state is corrupt")
    return data
