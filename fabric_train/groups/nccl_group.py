"""The connections of one generation over NCCL, for tensors of a GPU, and over gloo for the rest.

NCCL works on CUDA streams: a collective that was started says nothing of its end. So ``settle``
waits for the device before a rank votes on a step. A peer that died leaves the kernels of a
collective on the device until ``abort`` ends them; what they leave in memory is not used.

NCCL may block, or wait for its kernels, in ``abort`` and when its object goes: both run on a thread
of their own, without the GIL.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from fabric_train.groups import backend
from fabric_train.groups.generation_group import GenerationGroup, method
from fabric_train.groups.gloo_group import GlooGeneration
from fabric_train.messages.process import Assignment
from fabric_train.rules.limits import COLLECTIVE_S

_POLL_S = 0.0002
_ERROR_EVERY_S = 0.02  # asking NCCL for an error of its network


class NcclGeneration(GenerationGroup):
    """One communicator of all ranks on this process's device, and gloo beside it."""

    device: ClassVar[torch.device | None] = None
    """Of this process. Connections are made on other threads, where the current one is another."""

    def __init__(self, assignment: Assignment, store: dist.Store, timeout_s: float) -> None:
        """Connect to all ranks; blocks until all are here, or raises ``RuntimeError``."""
        super().__init__(assignment, store, timeout_s)
        if self.device is None:
            raise RuntimeError("the backend nccl needs a CUDA device")
        self._host = GlooGeneration(assignment, store, timeout_s)
        self._lock = threading.Lock()
        self._abort_begun = False
        self._aborted = threading.Event()
        try:
            self._nccl: Any = self._connect(store, timeout_s)
        except BaseException:
            self._host.discard()
            raise
        self._group = _ByDevice(self._host.group, self._nccl)

    def _connect(self, store: dist.Store, timeout_s: float) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=COLLECTIVE_S)  # noqa: SLF001
        made = dist.ProcessGroupNCCL(
            dist.PrefixStore("nccl", store), self.rank, self.world, options
        )
        with torch.cuda.device(self.device):
            stream = torch.cuda.Stream(self.device)
            with torch.cuda.stream(stream):  # the connections of a ring are made by its first sum
                one = torch.ones(1, device=self.device)
                made.allreduce([one], dist.AllreduceOptions()).wait()
                self._await(made, stream, time.monotonic() + timeout_s)
                if int(one.item()) != self.world:
                    raise RuntimeError(f"{one.item()} of {self.world} ranks are connected")
        return made

    @property
    def group(self) -> Any:
        """NCCL for tensors of a GPU, gloo for those of the host."""
        return self._group

    def settle(self) -> None:
        """Wait until all that the training thread has started on the device has ended."""
        nccl = self._nccl
        if nccl is None:
            raise RuntimeError(f"generation {self.generation} has ended")
        deadline = time.monotonic() + COLLECTIVE_S
        self._await(nccl, torch.cuda.current_stream(self.device), deadline)

    def _await(self, nccl: Any, stream: Any, deadline: float) -> None:
        event = torch.cuda.Event()
        event.record(stream)
        asked = time.monotonic()
        while not event.query():
            time.sleep(_POLL_S)
            now = time.monotonic()
            if now - asked < _ERROR_EVERY_S:
                continue
            asked = now
            error = nccl.get_error()
            if error != ErrorType.SUCCESS:
                raise RuntimeError(f"NCCL: {error}")
            if now > deadline:
                raise RuntimeError("NCCL: a collective does not end")

    def quiet(self, timeout_s: float) -> bool:
        """Wait, once aborted, until no kernel of this generation runs any more."""
        if not self._aborted.wait(timeout_s):
            return False
        torch.cuda.synchronize(self.device)
        return True

    def end(self) -> None:
        """End the collectives of this generation, on the device and on the host."""
        self._host.end()
        with self._lock:
            if self._abort_begun:
                return
            self._abort_begun = True
        # No daemon: the interpreter must not end while this thread is in NCCL.
        threading.Thread(target=self._end, name="fabric-nccl-abort").start()

    def _end(self) -> None:
        nccl, self._nccl = self._nccl, None
        nccl.abort()
        self._aborted.set()
        self._group.leave_device()  # and with it go the threads that torch has for the group
        del nccl

    def discard(self) -> None:
        """Drop a group that nobody used."""
        self._host.discard()
        self.end()


def use_current_device() -> None:
    """The generations of this process are of the calling thread's device, if CUDA is in use.

    A job over NCCL that has chosen none gets that of its place on its host, if there is one.
    """
    if backend.chosen(os.environ) == "nccl" and not torch.cuda.is_initialized():
        place = int(os.environ.get("LOCAL_RANK") or 0)
        if place < torch.cuda.device_count():
            torch.cuda.set_device(place)
            torch.cuda.init()
    if torch.cuda.is_initialized():
        NcclGeneration.device = torch.device("cuda", torch.cuda.current_device())


class _ByDevice:
    """Sends each collective to the group of its tensors' device."""

    def __init__(self, host: Any, device: Any) -> None:
        self._host = host
        self._device: Any = device

    def leave_device(self) -> None:
        """The device's group has ended."""
        self._device = None

    def _of(self, tensors: Any) -> Any:
        first = tensors[0] if isinstance(tensors, list) else tensors
        return self._of(first) if isinstance(first, list) else self._by(first)

    def _by(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "cuda":
            return self._host
        if self._device is None:
            raise RuntimeError("the collectives of this generation have ended")
        return self._device

    def barrier(self, opts: Any = None) -> Any:
        return self._host.barrier(opts or dist.BarrierOptions())

    def gather(self, outputs: list[Any], inputs: list[torch.Tensor], opts: Any) -> Any:
        return self._of(inputs).gather(outputs, inputs, opts)

    def __getattr__(self, name: str) -> Any:
        def call(tensors: Any, *args: Any) -> Any:
            return method(self._of(tensors), name)(tensors, *args)

        return call
