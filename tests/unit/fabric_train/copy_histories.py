"""A job whose buddies keep whole copies, as numbers: a state is the number of steps in it.

As `shard_histories`, with ranks that keep a copy of their own state, too, and an optimizer's step
that may end half done: it runs collectives. Only the rule is the real one.
"""

import random

from shard_histories import DiedError, WrongStateError

from fabric_train.rules.buddies import buddies, wards
from fabric_train.rules.step_rule import RankReport, UnrecoverableError, plan_return


class Rank:
    def __init__(self):
        self.state = None  # steps; None: a spare, or in the middle of an optimizer's step
        self.own = None  # steps in its copy of itself
        self.keeps = {}  # ward → steps of the copies that are here


class World:
    def __init__(self, seed, plan=plan_return, *, early=False, renews=True, owns=True, seeds=True):
        """``early``: a copy goes as soon as the next one is here. ``renews``: copies before a vote.

        ``owns``: a rank keeps itself, too. ``seeds``: who gets a new buddy gives it a copy.
        """
        self.early, self.renews, self.owns, self.gives_first = early, renews, owns, seeds
        self.random = random.Random(seed)
        self.plan = plan
        self.count = self.random.randint(2, 6)
        per_host = self.random.choice((1, 1, 2))
        self.hosts = [f"h{rank // per_host}" for rank in range(self.count)]
        self.buddies = self.random.randint(1, 2)
        self.keepers = buddies(self.hosts, self.buddies)
        self.ranks = [Rank() for _ in range(self.count)]
        for one in self.ranks:
            one.state = 0
        self.new = {(rank, to) for rank in range(self.count) for to in self.keepers[rank]}
        self.holders = [{one} for one in self.ranks]  # processes that have a rank's state
        self.step = 0  # that all have applied
        self.again = 0  # applied steps that were run again
        self.refused = ""
        self.died = set()

    def die(self, chance):
        while self.random.random() < chance:
            rank = self.random.randrange(self.count)
            self.ranks[rank] = Rank()
            self.died.add(rank)
            if self.random.random() < 0.3:
                self.hosts[rank] = f"h{self.random.randrange(2 * self.count)}"

    def check(self):
        if self.died:
            raise DiedError

    def live(self, rank):
        return rank not in self.died

    def attempt(self):
        gives = [(rank, to) for rank in range(self.count) for to in self.keepers[rank]]
        self.random.shuffle(gives)
        for rank, to in gives if self.renews or self.new else ():
            self.die(0.03)
            if self.live(rank) and self.live(to):
                self.give(rank, to)
        self.check()
        self.new.clear()
        self.holders = [
            {self.ranks[rank], *(self.ranks[to] for to in self.keepers[rank])}
            for rank in range(self.count)
        ]
        self.die(0.12)  # in its passes
        self.check()
        self.vote()

    def give(self, rank, to):
        known, step = self.ranks[to].keeps.get(rank, set()), self.ranks[rank].state
        if (rank, to) in self.new:
            known = set()
        elif not known or not max(known) <= step <= max(known) + 1:
            raise WrongStateError(f"rank {to} has copies {known} of {rank}, which gives {step}")
        self.ranks[to].keeps[rank] = {step} if self.early else {*known, step}

    def vote(self):
        """It has succeeded; who hears of it, and what becomes of the optimizer's step?"""
        voters = [*range(self.count)]
        self.random.shuffle(voters)
        deaf, tears = self.random.random() < 0.3, self.random.random() < 0.5
        for rank in voters:
            self.die(0.05)
            if not self.live(rank) or (deaf and self.random.random() < 0.5):
                continue
            one = self.ranks[rank]
            mine = wards(self.keepers, rank)
            one.keeps = {
                ward: {at for at in known if at >= one.state}
                for ward, known in one.keeps.items()
                if ward in mine
            }
            one.own = one.state if self.owns else None
            torn = tears and (self.died or deaf) and self.random.random() < 0.5
            one.state = None if torn else one.state + 1
        self.check()
        if any(one.state != self.step + 1 for one in self.ranks):
            raise DiedError  # somebody's connection broke, and nobody died
        self.step += 1

    def recover(self):
        applied = max((one.state for one in self.ranks if one.state is not None), default=self.step)
        while True:
            self.died.clear()
            try:
                self.recover_once()
            except DiedError:
                continue
            except UnrecoverableError as error:
                self.refused = str(error)
                return
            break
        if not applied - 1 <= self.step:
            raise WrongStateError(f"step {self.step} after {applied}")
        self.again += max(0, applied - self.step)

    def recover_once(self):
        reports = [
            RankReport(
                one.state,
                keeps={ward: (min(all_), max(all_)) for ward, all_ in one.keeps.items() if all_},
                own=one.own,
            )
            for one in self.ranks
        ]
        plan = self.plan(reports, [(rank,) for rank in range(self.count)])
        self.keepers = buddies(self.hosts, self.buddies)
        for one in self.ranks:
            one.keeps = {
                ward: {at for at in known if at <= plan.step} for ward, known in one.keeps.items()
            }
        self.new = {
            (rank, to)
            for rank in range(self.count)
            for to in self.keepers[rank]
            if self.gives_first and plan.step not in self.ranks[to].keeps.get(rank, set())
        }
        for rank in plan.copies:
            self.ranks[rank].state = self.ranks[rank].own = None
        for rank in sorted(plan.back):
            self.die(0.05)
            if self.live(rank):
                self.ranks[rank].state = self.ranks[rank].own
        for rank, source in sorted(plan.copies.items()):
            self.die(0.05)
            if self.live(source) and self.live(rank):
                whole = plan.step in self.ranks[source].keeps.get(rank, set())
                mine = self.ranks[source].state  # what is no shard is the source's own
                self.ranks[rank].state = plan.step if whole and mine == plan.step else -1
        self.check()
        self.step = plan.step
        for rank, one in enumerate(self.ranks):
            if one.state != plan.step:
                raise WrongStateError(f"rank {rank} has {one.state} of {plan.step} steps")

    def lost_for_good(self):
        """Some rank and all of its buddies of the last whole exchange are gone."""
        alive = set(self.ranks)
        return any(not (holders & alive) for holders in self.holders)


def play(seed, steps=12, plan=plan_return, **how):
    """A history; returns it. Raises ``WrongStateError``."""
    world = World(seed, plan, **how)
    for _ in range(steps):
        try:
            world.attempt()
        except DiedError:
            world.recover()
            if world.refused:
                if not world.lost_for_good():
                    raise WrongStateError(f"refused without need: {world.refused}") from None
                return world
    return world
