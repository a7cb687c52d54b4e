"""What one rank does so that shards survive: it gives its own away, and keeps those of others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fabric_train.rules import buddies as rule
from fabric_train.shards import replay
from fabric_train.shards.entry import Entry
from fabric_train.shards.exchange import Exchange, hashers
from fabric_train.shards.host_memory import available
from fabric_train.shards.log import Replay, ShardLog
from fabric_train.shards.proof import Proof
from fabric_train.shards.units import ShardUnits
from fabric_train.state.plain_values import ForeignValueError, carry, pack, unpack
from fabric_train.state.replicated import Manifest, ReplicatedState, spec_of
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


class ShardKeeper:
    """The shards of one rank, and those that it keeps. Used by the training thread."""

    def __init__(self, units: ShardUnits, options: GradientLog) -> None:
        self.units = units
        self.options = options
        self._turns = _turns(units, options.renew_steps)
        self._threads = hashers()
        self._proof = Proof(units)
        self._logs: dict[int, ShardLog] = {}
        self._buddies: tuple[int, ...] = ()
        self._wards: tuple[int, ...] = ()
        self._new: frozenset[int] = frozenset()  # buddies that have nothing of this rank yet
        self._stepped: dict[int, dict[str, int]] = {}
        self._step: int | None = None  # whose gate was reached last

    def need(self) -> tuple[int, int]:
        """Bytes that a buddy needs for this rank's shards, and that go there with each step.

        Of both the most. What arrives is beside what is kept until all of it is here.
        """
        sizes, renew = self.units.sizes(), self.options.renew_steps
        turns = [
            [one for one, turn in zip(sizes, self._turns, strict=True) if turn == now]
            for now in range(renew)
        ]
        ages = [
            sum(one * ((now - turn) % renew + 1) for turn in range(renew) for _, one in turns[turn])
            for now in range(renew)
        ]
        base, gradients = sum(one for one, _ in sizes), sum(one for _, one in sizes)
        each_step = gradients + max(sum(one for one, _ in turn) for turn in turns)
        return base + max(ages) + each_step, each_step

    def describe(self) -> str:
        """For people."""
        needs, each_step = self.need()
        count = self.options.buddies
        return (
            f"{count} budd{'ies keep' if count > 1 else 'y keeps'} a copy and the gradients since: "
            f"{count * needs} bytes of host memory for each rank, {count * each_step} a step"
        )

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
        self._logs |= {ward: ShardLog() for ward in self._wards if ward not in self._logs}
        spans = {buddy: keeps[buddy].get(rank) for buddy in self._buddies}
        self._new = frozenset(
            buddy for buddy, span in spans.items() if span is None or not span[0] <= step <= span[1]
        )

    def exchange(self, group: Any, rank: int, step: int) -> None:  # noqa: ANN401
        """Before the vote on the step after ``step``: give away what it takes to repeat it.

        Returns when buddies have it and when this rank has that of its wards; the buddies say so by
        their vote. Raises ``RuntimeError`` where the group is broken, ``BadEntryError``.
        """
        with Exchange(group, self._threads) as exchange:
            for seeds in (False, True):
                if to := [one for one in self._buddies if (one in self._new) == seeds]:
                    exchange.post(*self._entry(rank, step, seeds=seeds), to)
            arrived = [exchange.receive(ward, self._logs[ward]) for ward in self._wards]
            exchange.post_sums()
            for one in arrived:
                exchange.accept(one, self._logs[one.entry.rank])
            exchange.finish()
        self._step = step
        oldest = step - 2 * self.options.renew_steps - 2  # no base is older
        self._stepped = {at: one for at, one in self._stepped.items() if oldest < at < step}
        self._stepped[step] = {}
        self._proof.begin(step)

    def _entry(self, rank: int, step: int, *, seeds: bool) -> tuple[Entry, list[Tensor]]:
        units = self.units
        gradients = {
            place: gradient
            for place, unit in enumerate(units.units)
            if (gradient := units.gradient(unit)) is not None
        }
        due = range(len(units.units)) if seeds else self._due(step)
        renewed = {place: units.tensors(units.units[place]) for place in due}
        entry = Entry(
            rank, step, seeds, len(units.units),
            {place: spec_of("", one) for place, one in gradients.items()},
            {place: tuple(spec_of(*one) for one in each) for place, each in renewed.items()},
            units.fields(),
        )  # fmt: skip
        tensors = [*gradients.values(), *(one for each in renewed.values() for _, one in each)]
        return entry, tensors

    def _due(self, step: int) -> list[int]:
        """Units whose base is renewed with this step."""
        turn = step % self.options.renew_steps
        in_turn = (place for place, one in enumerate(self._turns) if one == turn)
        return sorted({*in_turn, *self.units.changed()})

    def voted(self) -> None:
        """The vote has succeeded: all buddies have all."""
        self._new = frozenset()
        self._logs = {ward: self._logs[ward] for ward in self._wards}

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` has made its step behind the gate."""
        if self._step is None:
            return
        self.units.mark(optimizer)
        made = self._stepped[self._step]
        for name, one in self.units.optimizers.items():
            if one is optimizer:
                made[name] = made.get(name, 0) + 1

    def settle(self, step: int) -> None:
        """All of the step before ``step`` is done. Raises ``NotRepeatedError``."""
        self._proof.compare(step - 1, self._stepped.get(step - 1, {}))

    def send(self, group: Any, state: ReplicatedState, to: int, step: int) -> None:  # noqa: ANN401
        """Send ``to`` what rebuilds its state after ``step`` steps. Raises ``RuntimeError``."""
        manifest, mine, _ = state.offer()
        rest = [
            (spec, one)
            for spec, one in zip(manifest.tensors, mine, strict=True)
            if spec.name not in self.units.names()
        ]
        how, data = self._logs[to].offer(step, self._stepped)
        manifest = replace(manifest, tensors=tuple(spec for spec, _ in rest))
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


def _turns(units: ShardUnits, turns: int) -> list[int]:
    """Of each unit, with which of ``turns`` it is renewed, so that each has as many bytes."""
    sizes = [unit.parameter.numel() for unit in units.units]
    total = max(1, sum(sizes))
    before = [sum(sizes[:place]) for place in range(len(sizes))]
    return [
        turns * (start + size // 2) // total % turns
        for start, size in zip(before, sizes, strict=True)
    ]
