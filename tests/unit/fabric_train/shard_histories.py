"""A job with shards as numbers: a state is the number of steps in it. The rules are the real ones.

Ranks die at any moment: before, while and after they give their gradients away, behind a vote that
only some have heard of, while a recovery copies, between a source's own step and what it owes. What
the world never does: a rank that sends other bytes than it has, two ranks of one number.
"""

import random

from fabric_train.rules.buddies import buddies, wards
from fabric_train.rules.step_rule import RankReport, UnrecoverableError, plan_recovery


class WrongStateError(Exception):
    """A rank goes on with a state that is not that of the common step."""


class DiedError(Exception):
    """A rank has died: who waits for it begins a recovery."""


class Rank:
    def __init__(self):
        self.state = None  # steps; None: a spare
        self.ready = False  # gradients of the next step
        self.keeps = {}  # ward → (first, last) step that can be rebuilt


class World:
    """``groups``: ranks with the same shards. Groups of one rank are kept by buddies."""

    def __init__(self, seed, plan=plan_recovery, *, seeds=True, drops=False):
        """``seeds``: who gets a new buddy gives it all. ``drops``: at once what others keep now."""
        self.gives_all, self.drops_early = seeds, drops
        self.random = random.Random(seed)
        self.plan = plan
        copies = self.random.choice((1, 1, 2, 3))
        shards = self.random.randint(2, 4)
        self.groups = [tuple(range(one, shards * copies, shards)) for one in range(shards)]
        self.count = shards * copies
        per_host = self.random.choice((1, 1, 2))
        self.hosts = [f"h{rank // per_host}" for rank in range(self.count)]
        self.buddies = self.random.randint(1, 2) if copies == 1 else 0
        self.keepers = self.place()
        self.ranks = [Rank() for _ in range(self.count)]
        for one in self.ranks:
            one.state = 0
        self.seeds = {(rank, to) for rank in range(self.count) for to in self.keepers[rank]}
        self.step = 0
        self.refused = ""
        self.died = set()

    def place(self):
        """Who keeps whose, where the ranks are now."""
        return buddies(self.hosts, self.buddies) if self.buddies else [()] * self.count

    def die(self, chance=0.15):
        """A rank or two end; spares take their places."""
        while self.random.random() < chance:
            rank = self.random.randrange(self.count)
            self.ranks[rank] = Rank()
            self.died.add(rank)
            if self.random.random() < 0.3:  # its place is taken on another host, others' are not
                self.hosts[rank] = f"h{self.random.randrange(2 * self.count)}"

    def check(self):
        if self.died:
            raise DiedError

    def live(self, rank):
        return rank not in self.died

    def attempt(self):
        """One step of all ranks; `DiedError` where one dies in it."""
        for one in self.ranks:
            one.ready = False
        self.die()
        self.check()
        for one in self.ranks:
            one.ready = True
        gives = [(rank, to) for rank in range(self.count) for to in self.keepers[rank]]
        self.random.shuffle(gives)
        for rank, to in gives:
            self.die(0.03)
            if self.live(rank) and self.live(to):
                self.give(rank, to)
        self.check()
        voters = [*range(self.count)]
        self.random.shuffle(voters)
        deaf = self.random.random() < 0.3
        for rank in voters:  # the vote has succeeded; who hears of it?
            self.die(0.05)
            if self.live(rank) and not (deaf and self.random.random() < 0.5):
                self.ranks[rank].state += 1
                self.ranks[rank].ready = False
                self.drop(rank)
        self.check()
        if any(one.state == self.step for one in self.ranks):
            raise DiedError  # somebody's connection broke, and nobody died
        self.step += 1
        self.seeds.clear()

    def drop(self, to):
        """What is kept of ranks that others keep now."""
        mine, known = wards(self.keepers, to), self.ranks[to].keeps
        self.ranks[to].keeps = {ward: span for ward, span in known.items() if ward in mine}

    def give(self, rank, to):
        keeper, step = self.ranks[to], self.ranks[rank].state
        first, last = keeper.keeps.get(rank, (0, -1))
        if (rank, to) in self.seeds:
            first = step
        elif not first <= step <= last:
            raise WrongStateError(
                f"rank {to} knows {first} to {last} of {rank}, which gives {step}"
            )
        keeper.keeps[rank] = (self.random.randint(first, step), step + 1)

    def recover(self):
        """Again until one is over, or refused."""
        while True:
            self.died.clear()
            try:
                self.recover_once()
            except DiedError:
                continue
            except UnrecoverableError as error:
                self.refused = str(error)
                return
            return

    def recover_once(self):
        reports = [RankReport(one.state, one.ready, dict(one.keeps)) for one in self.ranks]
        plan = self.plan(reports, self.groups)
        self.keepers = self.place()
        self.seeds = {
            (rank, to)
            for rank in range(self.count)
            for to in self.keepers[rank]
            if self.gives_all and not self.covers(self.ranks[to].keeps.get(rank), plan.step)
        }
        for to in range(self.count) if self.drops_early else ():
            self.drop(to)
        for rank in plan.copies:
            self.ranks[rank].state = None
            self.ranks[rank].ready = False
        for rank, source in sorted(plan.copies.items()):
            self.die(0.05)
            if not plan.is_owed(rank):
                self.send(plan, source, rank)
        self.check()  # all vote on the recovery
        for rank in sorted(plan.apply):
            self.die(0.05)
            if self.live(rank):
                self.ranks[rank].state += 1
                self.ranks[rank].ready = False
        for rank, source in sorted(plan.copies.items()):
            self.die(0.05)
            if plan.is_owed(rank):
                self.send(plan, source, rank)
        self.check()
        self.step = plan.step
        for rank, one in enumerate(self.ranks):
            if one.state != plan.step:
                raise WrongStateError(f"rank {rank} has {one.state} of {plan.step} steps")

    @staticmethod
    def covers(span, step):
        return span is not None and span[0] <= step <= span[1]

    def send(self, plan, source, rank):
        """What arrives: all of the source's state as it is now, or what it can rebuild."""
        if not (self.live(source) and self.live(rank)):
            return
        if rank not in plan.rebuilt:
            self.ranks[rank].state = self.ranks[source].state
            return
        span = self.ranks[source].keeps.get(rank, (0, -1))
        mine = self.ranks[source].state  # what is no shard is the source's own
        self.ranks[rank].state = (
            plan.step if self.covers(span, plan.step) and mine == plan.step else -1
        )

    def lost_for_good(self):
        """Ranks without a live replica and without a live buddy that knows the common step."""
        held = [one.state for one in self.ranks if one.state is not None]
        if not held:
            return True
        step = max(held)
        for group in self.groups:
            able = [
                one for one in group
                if self.ranks[one].state == step
                or (self.ranks[one].state == step - 1 and self.ranks[one].ready)
            ]  # fmt: skip
            for rank in group:
                kept = any(
                    self.covers(self.ranks[to].keeps.get(rank), step)
                    and (
                        self.ranks[to].state == step
                        or (self.ranks[to].state == step - 1 and self.ranks[to].ready)
                    )
                    for to in range(self.count)
                )
                if not able and not kept:
                    return True
        return False


def play(seed, steps=12, plan=plan_recovery, **how):
    """A history; returns it. Raises ``WrongStateError``."""
    world = World(seed, plan, **how)
    for _ in range(steps):
        try:
            world.attempt()
        except DiedError:
            before = world.step
            world.recover()
            if world.refused:
                if not world.lost_for_good():
                    raise WrongStateError(f"refused without need: {world.refused}") from None
                return world
            if world.step < before:
                raise WrongStateError(f"step {world.step} after {before}") from None
    return world
