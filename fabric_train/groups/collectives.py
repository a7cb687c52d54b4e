"""A process group that outlives generations.

``FabricGroup`` is what DDP and the training loop hold; it never changes. Inside it is the
``GenerationGroup`` of the newest generation: gloo over TCP, or the network plugin. When a peer is
lost, ``abort`` shuts down this process's own connections of that generation. Every pending
collective then fails within milliseconds, here and, as the connections close, at every peer. No
root is needed for that. What gloo misses of them, ``_end_stuck`` ends after half a second.

A collective that fails in an attempt does not raise in the middle of a backward pass, which would
leave DDP's reducer unusable. It ends with whatever the memory holds, and marks the group as broken.
The gate before the optimizer step sees the mark, so nothing computed from such memory is ever
applied. Integers that it should have filled are zeros: a model may take them for sizes and places
(an all-to-all of experts), and a GPU that is given a wrong place is of no use to its process any
more. Where there is no gate behind it a collective is refused: see ``Use``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future

from fabric_train.groups import backend
from fabric_train.groups.agent_store import generation_store
from fabric_train.groups.generation_group import LOOK_S, LOOKS, GenerationGroup
from fabric_train.groups.gloo_group import GlooGeneration
from fabric_train.groups.kept_calls import KeptCalls, future_of, tensors_in
from fabric_train.groups.nccl_group import NcclGeneration
from fabric_train.groups.plugin_group import PluginGeneration
from fabric_train.groups.torch_calls import Call, TorchCalls, Use
from fabric_train.messages.link import AgentLink
from fabric_train.messages.process import Assignment
from fabric_train.rules.loop import RuleError

__all__ = [
    "Connecting",
    "FabricGroup",
    "GenerationGroup",
    "Use",
    "connect",
    "connect_generation",
    "start_connecting",
]


def connect_generation(
    assignment: Assignment,
    store: dist.Store,
    timeout_s: float,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> GenerationGroup:
    """Connect to all ranks with the backend that ``FABRIC_TRAIN_BACKEND`` names.

    ``store`` is that of the generation, where its ranks meet. ``groups``: ranks of each further
    group that this rank is in, by name.

    Blocks until all are here, or raises ``RuntimeError``; ``BackendError`` for another backend,
    ``LibraryMissingError`` where a library of the backend is not there.
    """
    makers: dict[str, Callable[[Assignment, dist.Store, float], GenerationGroup]]
    makers = {"gloo": GlooGeneration, "plugin": PluginGeneration, "nccl": NcclGeneration}
    made = makers[backend.chosen(os.environ)](assignment, store, timeout_s)
    try:
        made.connect_parts(groups or {})
    except BaseException:
        made.abort()
        raise
    return made


class FabricGroup(TorchCalls):
    """The group that a job's objects hold. ``rank`` and its inside change with the generation.

    While its use is LOCAL each collective is answered at once, from what this process gives: sums
    and broadcasts leave it as it is, gathers repeat it, what is received is zero. So a spare can
    build DDP and rehearse a step without a peer.
    """

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)
        self._inner: GenerationGroup | None = None
        self._pending: dict[Any, _Pending] = {}
        self._stuck: list[_Pending] = []  # their memory stays, for gloo has its address
        self._idle = threading.Condition()
        self._awaited = False  # somebody waits until nothing is pending
        self._changing = threading.Lock()
        self._mistake = ""  # of the loop, in a collective that was started
        self.broken = False
        self.on_joint_end: Callable[[], None] = lambda: None
        """A collective has ended to which all ranks gave their part; from any thread."""
        self.on_start: Callable[[Sequence[Any]], None] = lambda _result: None
        """A collective of an attempt begins, which writes to this result."""
        self.on_end: Callable[[], None] = lambda: None
        """A collective that has begun has ended, well or not; from any thread."""
        self.on_settle: Callable[[], None] = lambda: None
        """This rank has done its part of an attempt, and waits for the others."""
        self.on_broken: Callable[[int, str], None] = lambda _generation, _error: None
        self.subgroups: dict[str, FabricGroup] = {}
        """Groups that the job has made, by name: of those with this rank."""
        self.kept: KeptCalls | None = None
        """Keeps the collectives of an attempt, of a job that repeats them."""

    def adopt(self, inner: GenerationGroup) -> None:
        """Use ``inner`` from now on; the one before has to be quiet by then."""
        with self._changing:
            gone = [self._inner]
            self._inner = inner
            self._rank = inner.rank
            self.broken, self._mistake = False, ""
        # Its end takes tens of milliseconds, for gloo joins its threads.
        threading.Thread(target=gone.clear, name="fabric-gone").start()

    @property
    def inner(self) -> GenerationGroup | None:
        """Connections of the newest generation that this process is part of."""
        return self._inner

    @property
    def generation(self) -> int:
        """The generation whose collectives work; 0: none."""
        inner = self._inner
        return inner.generation if inner is not None and not self.broken else 0

    def abort(self, before: int) -> None:
        """End all collectives of a generation older than ``before``; from any thread."""
        with self._changing:
            inner = self._inner
            if inner is None or inner.generation >= before:
                return
            self.broken = True
        inner.abort()
        self._watch_stuck(inner)
        for name, one in self.subgroups.items():
            if name in inner.parts:
                one._watch_stuck(inner.parts[name])  # noqa: SLF001

    def _watch_stuck(self, inner: GenerationGroup) -> None:
        if self._pending:
            threading.Thread(target=self._end_stuck, args=(inner,), daemon=True).start()

    def _end_stuck(self, inner: GenerationGroup) -> None:
        """End those collectives of ``inner`` that its abort has missed."""
        stuck = 0
        while any(one.inner is inner for one in list(self._pending.values())):
            time.sleep(LOOK_S)
            stuck = stuck + 1 if inner.is_stuck() else 0
            if stuck < LOOKS:
                continue
            inner.keep()
            for work, one in list(self._pending.items()):
                if one.inner is inner:
                    self._stuck.append(one)
                    self._end(work, well=False)

    def wait_quiet(self, timeout_s: float) -> bool:
        """Wait until no collective can write memory any more. False: some still might."""
        with self._idle:
            self._awaited = True
            quiet = self._idle.wait_for(lambda: not self._pending, timeout_s)
            self._awaited = False
        for one in self.subgroups.values():
            quiet = one.wait_quiet(timeout_s) and quiet
        parts = self._inner.all if self._inner is not None else []
        return quiet and all(one.quiet(timeout_s) for one in parts)

    def settle(self, *, attempt: bool = True) -> bool:
        """Wait until all collectives that were begun are over. True: each has done its work.

        ``attempt``: they were those of an attempt, and this rank has done its part of it. Raises
        ``RuleError`` where one of them cannot be done at all, e.g. for its type.
        """
        inner = self._inner
        for one in (self, *self.subgroups.values()):
            one.raise_mistake()
        if self.kept is not None:
            self.kept.wait_ended()
        if attempt:
            self.on_settle()
        if inner is not None and not self.broken:
            try:
                for part in inner.all:
                    part.settle()
            except RuntimeError as error:
                self._fail(inner, error)
        return not self.broken

    def raise_mistake(self) -> None:
        """Raise ``RuleError`` for a collective that was started and cannot be done."""
        if self._mistake and not self.broken:
            text, self._mistake = self._mistake, ""
            raise RuleError(text)

    def _run(self, start: Callable[[Any], Any], result: list[Any], *, joint: bool = False) -> Any:
        """Start a collective of the inner group; its failure marks this group as broken."""
        inner = self._inner
        if self.use is Use.CLOSED:
            raise RuleError(
                "a collective between optimizer.step() and the next attempt: it would be lost with "
                "a rank. Do it inside attempt(), before optimizer.step()"
            )
        if self.use is Use.LOCAL or inner is None:
            return _done(result)
        if self.use is Use.SETUP:
            return start(inner.group)
        if self.kept is not None:
            return self.kept.run(self, start, result, joint=joint)
        if self.broken:
            return _done(without_integers(start, result))
        self.raise_mistake()
        future = future_of(result)

        def finish(well: bool) -> None:
            future.set_result(result if well else without_integers(start, result, beside=True))

        if not self.begin(start, result, finish, joint=joint):
            return _done(without_integers(start, result))
        return _create_work_from_future(future)

    def begin(
        self,
        start: Callable[[Any], Any],
        result: list[Any],
        finish: Callable[[bool], None],
        *,
        joint: bool,
    ) -> bool:
        """Start a collective on the connections of this generation, which writes to ``result``.

        ``finish`` is called once when it has ended, with whether it has done its work; from any
        thread. False: it has failed at once, and ``finish`` is not called. Raises ``RuleError``.
        """
        inner = self._inner
        assert inner is not None
        self.on_start(result)
        try:
            work = start(inner.group)
        except RuntimeError as error:
            self.on_end()
            if inner.is_mistake(error):
                raise RuleError(str(error)) from None
            self._fail(inner, error)
            return False
        future = _ended(work)
        self._pending[work] = _Pending(inner, result, work, finish)  # under the GIL, as its end

        def end(ended: Future[Any]) -> None:
            well = True
            try:
                ended.value()
                if joint:
                    self.on_joint_end()
            except RuntimeError as error:
                if inner.is_mistake(error):
                    self._mistake = self._mistake or str(error)
                else:
                    well = False
                    self._fail(inner, error)
            finally:
                self._end(work, well=well)

        future.then(end)
        return True

    def _end(self, work: Any, *, well: bool) -> None:
        """The collective has ended, or counts as ended; once for each."""
        pending = self._pending.pop(work, None)
        if pending is None:
            return
        self.on_end()
        pending.finish(well)
        if self._awaited:  # who sets it looks at what is pending after that
            with self._idle:
                self._idle.notify_all()

    def _fail(self, inner: GenerationGroup, error: RuntimeError) -> None:
        if inner is self._inner and not self.broken:
            self.broken = True
            self.on_broken(inner.generation, str(error))


@dataclass(frozen=True, eq=False)
class _Pending:
    """A collective that was started: what it may write, and who hears of its end."""

    inner: GenerationGroup
    result: list[Any]
    work: Any
    finish: Callable[[bool], None]


def without_integers(start: object, result: list[Any], *, beside: bool = False) -> list[Any]:
    """``result`` of a collective that has failed: zeros where integers are and had no value before.

    ``beside``: on another thread than the caller's, which works on no GPU.
    """
    if isinstance(start, Call) and start.fills:
        for tensor in tensors_in(result):
            number = tensor.is_floating_point() or tensor.is_complex()
            if not number and not (beside and tensor.is_cuda):
                tensor.zero_()
    return result


def _ended(work: Any) -> Future[Any]:
    """Has the end of ``work``. Gloo's messages between two ranks only know a wait that blocks."""
    try:
        future: Future[Any] = work.get_future()
    except RuntimeError:
        future = Future()

        def wait() -> None:
            try:
                work.wait()
            except RuntimeError as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        threading.Thread(target=wait, name="fabric-message", daemon=True).start()
    return future


def _done(result: Sequence[Any]) -> Any:
    future = future_of(result)
    future.set_result(result)
    return _create_work_from_future(future)


class Connecting:
    """Connects to a generation on a thread of its own, for that cannot be interrupted.

    ``notify`` is called when it has ended. Who does not want the group any more abandons it; what
    was abandoned ends with its own timeout.
    """

    def __init__(self, make: Callable[[], GenerationGroup], notify: Callable[[], None]) -> None:
        self._box: list[GenerationGroup | Exception] = []
        self._abandoned = threading.Event()

        def connect() -> None:
            try:
                self._box.append(make())
            except Exception as error:  # the training thread raises it
                self._box.append(error)
            if self._abandoned.is_set():
                self._discard()
            notify()

        threading.Thread(target=connect, name="fabric-connect", daemon=True).start()

    @property
    def ended(self) -> bool:
        """All ranks are connected, or that has failed."""
        return bool(self._box)

    @property
    def error(self) -> Exception | None:
        """Why it has failed."""
        got = self._box[0] if self._box else None
        return got if isinstance(got, Exception) else None

    def result(
        self, wait: Callable[[Callable[[], bool]], bool], give_up: Callable[[], bool]
    ) -> GenerationGroup | None:
        """The group, when all ranks are connected; None as soon as ``give_up`` holds.

        ``wait`` returns when its condition holds. Raises what the connecting has raised.
        """
        wait(lambda: self.ended or give_up())
        if not self._box:
            self.abandon()
            return None
        got = self._box[0]
        if isinstance(got, Exception):
            raise got
        return got

    def abandon(self) -> None:
        """Nobody wants the group."""
        self._abandoned.set()
        if self._box:
            self._discard()

    def _discard(self) -> None:
        if isinstance(self._box[0], GenerationGroup):
            for one in self._box[0].all:
                one.discard()


def start_connecting(
    link: AgentLink,
    assignment: Assignment,
    timeout_s: float,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> Connecting:
    """Connect to all ranks of ``assignment``. Its result raises as ``connect_generation`` does."""

    def make() -> GenerationGroup:
        store = generation_store(link, assignment, timeout_s)
        return connect_generation(assignment, store, timeout_s, groups)

    return Connecting(make, link.notify)


def connect(link: AgentLink, assignment: Assignment, timeout_s: float) -> GenerationGroup | None:
    """The group of ``assignment``; None: a newer one has arrived meanwhile.

    Raises as ``connect_generation`` does.
    """
    started = start_connecting(link, assignment, timeout_s)
    return started.result(link.wait, lambda: link.newer_than(assignment.generation))
