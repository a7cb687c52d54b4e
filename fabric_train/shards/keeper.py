"""What one rank does so that shards survive: it gives its own away, and keeps those of others."""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fabric_train.rules import buddies as rule
from fabric_train.shards import replay
from fabric_train.shards.entry import Entry
from fabric_train.shards.exchange import Exchange, hashers
from fabric_train.shards.host_memory import available
from fabric_train.shards.log import KeptShards, Replay
from fabric_train.shards.own_copy import OwnCopy
from fabric_train.shards.units import ShardUnits
from fabric_train.state.plain_values import ForeignValueError, carry, pack, unpack
from fabric_train.state.replicated import Manifest, ReplicatedState
from fabric_train.state.transfer import (
    CorruptStateError,
    receive_bytes,
    receive_tensors,
    send_bytes,
    send_tensors,
)


@dataclass(frozen=True)
class GradientLog:
    """How shards without replicas are kept, in the memory of other hosts.

    Where an optimizer's step cannot be repeated on a shard alone, all of it is copied each step.

    ``buddies``: hosts that keep each shard; so many hosts next to each other may be lost but one.
    ``renew_steps``: a shard is copied anew once in so many steps, a part of it with each.
    ``host_memory``: bytes that one rank may take for the shards of others; None: three quarters of
    what is free, shared by the ranks of its host.
    """

    buddies: int = 1
    renew_steps: int = 8
    host_memory: int | None = None

    def __post_init__(self) -> None:
        """Raises ``ValueError``."""
        if self.buddies < 1 or self.renew_steps < 1:
            raise ValueError(f"{self}: at least one buddy, and one step")
        if self.host_memory is not None and self.host_memory < 0:
            raise ValueError(f"{self}: memory below 0")


@carry
@dataclass(frozen=True)
class _Rebuilt:
    """What a buddy sends first: its own state without shards, and what rebuilds the receiver's."""

    manifest: Manifest
    replay: Replay


Kept = TypeVar("Kept", bound=KeptShards)


class ShardKeeper(abc.ABC, Generic[Kept]):
    """The shards of one rank, and those that it keeps. Used by the training thread."""

    own: OwnCopy | None = None
    """Who is lost behind a step takes all ranks back before it; None: it takes nobody back."""

    def __init__(self, units: ShardUnits, options: GradientLog) -> None:
        self.units = units
        self.options = options
        self._threads = hashers()
        self._logs: dict[int, Kept] = {}
        self._buddies: tuple[int, ...] = ()
        self._wards: tuple[int, ...] = ()
        self._new: frozenset[int] = frozenset()  # buddies that have nothing of this rank yet
        self._step: int | None = None  # whose gate was reached last

    @abc.abstractmethod
    def need(self) -> tuple[int, int]:
        """Bytes that a buddy needs for this rank's shards, and that go there with each step.

        Of both the most. What arrives is beside what is kept until all of it is here.
        """

    def own_need(self, state: ReplicatedState) -> int:  # noqa: ARG002
        """Bytes that this rank needs for a copy of ``state``, if it keeps one."""
        return 0

    @abc.abstractmethod
    def describe(self, state: ReplicatedState) -> str:
        """How the shards of ``state`` are kept, for people."""

    @abc.abstractmethod
    def _new_log(self) -> Kept:
        """For the shards of another rank, of which nothing is here yet."""

    @abc.abstractmethod
    def _entry(
        self, rank: int, step: int, scalars: bytes, *, seeds: bool
    ) -> tuple[Entry, list[Tensor]]:
        """What a buddy gets before the vote on the step after ``step``."""

    def size(self) -> int:
        """Bytes that are used here for the shards of others."""
        return sum(log.size for log in self._logs.values())

    def limit(self) -> int:
        """Bytes that this rank may take for the shards of others."""
        if self.options.host_memory is not None:
            return self.options.host_memory
        ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
        return available() * 3 // 4 // ranks

    def keeps(self) -> dict[int, tuple[int, int]]:
        """Of the ranks whose shards are here: the first and last step that can be rebuilt."""
        spans = {ward: log.span() for ward, log in self._logs.items()}
        return {ward: span for ward, span in spans.items() if span is not None}

    def meet(
        self,
        rank: int,
        hosts: Sequence[str],
        step: int,
        keeps: Sequence[Mapping[int, tuple[int, int]]],
    ) -> None:
        """A generation of ranks on ``hosts`` goes on after ``step`` steps.

        ``keeps``: what each of them has said.
        """
        keepers = rule.buddies(hosts, self.options.buddies)
        self._buddies, self._wards = keepers[rank], rule.wards(keepers, rank)
        # Those of others stay until their new buddies have all: they may be rebuilt from here.
        self._logs |= {ward: self._new_log() for ward in self._wards if ward not in self._logs}
        spans = {buddy: keeps[buddy].get(rank) for buddy in self._buddies}
        self._new = frozenset(
            buddy for buddy, span in spans.items() if span is None or not span[0] <= step <= span[1]
        )

    def exchange(self, group: Any, rank: int, step: int, scalars: bytes = b"") -> None:  # noqa: ANN401
        """Before the vote on the step after ``step``: give away what it takes to repeat it.

        ``scalars``: what the state after ``step`` steps is beside its tensors. Returns when buddies
        have it and when this rank has that of its wards; the buddies say so by their vote. Raises
        ``RuntimeError`` where the group is broken, ``BadEntryError``.
        """
        with Exchange(group, self._threads) as exchange:
            for seeds in (False, True):
                if to := [one for one in self._buddies if (one in self._new) == seeds]:
                    exchange.post(*self._entry(rank, step, scalars, seeds=seeds), to)
            arrived = [exchange.receive(ward, self._logs[ward]) for ward in self._wards]
            exchange.post_sums()
            for one in arrived:
                exchange.accept(one, self._logs[one.entry.rank])
            exchange.finish()
        self._step = step

    def voted(self, state: ReplicatedState) -> None:
        """The vote has succeeded: all buddies have all. ``state`` is that before the step."""
        self._new = frozenset()
        self._logs = {ward: self._logs[ward] for ward in self._wards}
        if self.own is not None and self._step is not None:
            self.own.take(state, self._step)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` has made its step behind the gate."""

    def settle(self, step: int) -> None:
        """All of the step before ``step`` is done. Raises ``NotRepeatedError``."""

    @abc.abstractmethod
    def _offer(self, ward: int, step: int) -> tuple[Replay, list[Tensor], bytes]:
        """What rebuilds ``ward``: how, its tensors, and its scalars; b"": those are this rank's."""

    def send(self, group: Any, state: ReplicatedState, to: int, step: int) -> None:  # noqa: ANN401
        """Send ``to`` what rebuilds its state after ``step`` steps. Raises ``RuntimeError``."""
        manifest, mine, _ = state.offer()
        rest = [
            (spec, one)
            for spec, one in zip(manifest.tensors, mine, strict=True)
            if spec.name not in self.units.names()
        ]
        how, data, scalars = self._offer(to, step)
        specs = tuple(spec for spec, _ in rest)
        manifest = replace(manifest, tensors=specs, scalars=scalars or manifest.scalars)
        packed = pack(_Rebuilt(manifest, how))
        send_bytes(group, packed, to)
        send_tensors(group, packed, [*(one for _, one in rest), *data], to)

    def receive(self, group: Any, state: ReplicatedState, source: int) -> None:  # noqa: ANN401
        """Receive what `send` sends, and make the steps. Raises as ``receive_state``."""
        packed = receive_bytes(group, source)
        try:
            rebuilt = unpack(packed)
        except ForeignValueError as error:
            raise CorruptStateError(f"what rank {source} keeps of this one: {error}") from None
        if not isinstance(rebuilt, _Rebuilt):
            raise CorruptStateError(f"what rank {source} keeps of this one is no state")
        replay.check(rebuilt.replay, self.units)
        bases = [one for each in rebuilt.replay.bases for one in each]
        whole = replace(rebuilt.manifest, tensors=(*rebuilt.manifest.tensors, *bases))
        gradients = replay.gradient_buffers(rebuilt.replay)
        receive_tensors(group, packed, [*state.accept(whole), *gradients], source)
        replay.run(rebuilt.replay, self.units, gradients)
        state.take_over(whole)
        self.units.mark()
