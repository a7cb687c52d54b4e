"""Random worlds whose rails, management and broker fail apart. Virtual time.

What the generator makes: jobs of 2 to 12 hosts that all probe each other, and of 24 to 64 hosts of
which each probes ten, some not of the job; even and odd sizes, equal halves, halves that are lost
for ever, one-way cuts, flaps, pauses, reboots, dead probers, a broker that reaches one side only,
and two coordinators that are killed. What it never makes: two boots of one name at a time, a host
that lies, a broker that loses what it has acknowledged.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from job_world import JOB, TICK_S, World

SETTLE_S = 14.0
"""As long as a last will, what it changes, and two takeovers take; three times over."""
STEPPING_S = 2.0


def run(world: World, seconds: float) -> None:
    for _ in range(round(seconds / TICK_S)):
        world.tick()


def small(seed: int) -> World:
    pick = random.Random(seed)
    nodes = pick.randint(2, 9)
    return World(
        seed, nodes=nodes, spares=pick.randint(0, 3), computes=pick.choice([1, 2]),
        network=pick.choice(["rails", "rails", "agents"]),
    )  # fmt: skip


def large(seed: int) -> World:
    pick = random.Random(seed)
    hosts = pick.randint(24, 64)
    nodes = pick.randint(12, hosts - 8)
    spares = pick.randint(1, 4)
    return World(
        seed, nodes=nodes, spares=spares, others=hosts - nodes - spares, probes=10,
        computes=pick.choice([1, 2]), network="rails",
    )  # fmt: skip


def split(world: World) -> None:
    """Two sides, equal ones half of the time, that lose rails, management or both."""
    pick, names = world.random, list(world.hosts)
    if pick.random() < 0.5:
        job = [name for name in names if world.hosts[name].in_job]
        rest = [name for name in names if not world.hosts[name].in_job]
        pick.shuffle(job)
        pick.shuffle(rest)
        side = {*job[: len(job) // 2], *rest[: len(rest) // 2]}
    else:
        share = pick.random()
        side = {name for name in names if pick.random() < share}
    pairs = list(itertools.product(side, set(names) - side))
    what = pick.choice(["rails", "management", "both"])
    if what == "both":
        world.cut |= {frozenset(pair) for pair in pairs}
    elif what == "management":
        world.management_cut |= {frozenset(pair) for pair in pairs}
    else:
        world.deaf |= {*pairs, *((b, a) for a, b in pairs)}
    if pick.random() < 0.5:
        for name in pick.choice([side, set(names) - side]):
            world.hosts[name].broker = False


ONE_HOST = ("pause", "crash", "rails", "manage", "broker", "deaf", "mute", "prober", "reboot")


def one_host(world: World, kind: str = "") -> None:
    """``kind``: of ``ONE_HOST``; by default any."""
    pick = world.random
    host = pick.choice(list(world.hosts.values()))
    others = [name for name in world.hosts if name != host.name]
    match kind or pick.choice(ONE_HOST):
        case "pause":
            host.paused = True
        case "crash":
            host.up = False
        case "rails":
            world.paths_cut.add(host.name)
        case "manage":
            world.management_cut |= {frozenset((host.name, other)) for other in others}
            host.broker = False
        case "broker":
            host.broker = False
        case "deaf":
            world.deaf |= {(host.name, other) for other in others}
        case "mute":
            world.deaf |= {(other, host.name) for other in others}
        case "prober":
            host.prober = False
        case "reboot":
            host.restart()


def lossy(world: World) -> None:
    pairs = [frozenset(pair) for pair in itertools.combinations(world.hosts, 2)]
    world.cut |= set(world.random.sample(pairs, min(2, len(pairs))))


def half_is_lost(world: World) -> None:
    hosts = [host for host in world.hosts.values() if host.in_job]
    for host in world.random.sample(hosts, len(hosts) // 2):
        host.up = False


def flapping(world: World) -> None:
    """A host whose rails come and go, for up to two seconds."""
    name = world.random.choice([host.name for host in world.hosts.values() if host.in_job])
    world.flapped.add(name)
    for _ in range(world.random.randint(1, 8)):
        world.paths_cut.add(name)
        run(world, 0.2)
        world.paths_cut.discard(name)
        run(world, 0.2)


def blind(world: World) -> None:
    """A prober dies, and later nobody says any more that the job steps."""
    one = world.random.choice([host for host in world.hosts.values() if host.in_job])
    one.prober = False
    run(world, 0.3 + world.random.random())
    for host in world.hosts.values():
        host.broker = False


def cut_off_in_a_takeover(world: World) -> None:
    """A host loses the broker about when it learns of a generation."""
    one = world.random.choice([host for host in world.hosts.values() if host.in_job])
    pair = frozenset(world.random.sample(sorted(world.hosts), 2))
    world.cut.add(pair)
    run(world, 0.2)
    world.cut.discard(pair)
    number = world.progress[0]
    for _ in range(60):
        world.tick()
        if one.running is not None and one.running.number > number:
            break
    one.broker = False


def split_after_a_reboot(world: World) -> None:
    """The restarted host is beside one side, and in no majority any more."""
    names = [host.name for host in world.hosts.values() if host.in_job]
    world.random.shuffle(names)
    world.hosts[names[0]].restart()
    side = names[: (len(names) + 1) // 2]
    world.cut |= {frozenset(pair) for pair in itertools.product(side, set(world.hosts) - {*side})}


def disturb(world: World) -> None:
    pick = world.random
    kinds = [one_host, one_host, one_host, split, split, lossy, half_is_lost, flapping]
    kinds += [blind, cut_off_in_a_takeover, split_after_a_reboot]
    if pick.random() < 0.15:
        world.crash_compute(pick.choice(list(world.deciders)))
    pick.choice(kinds)(world)


Disturbance = Callable[[World], None]


def repair(world: World) -> None:
    """All is well again; hosts that were lost come back as new ones."""
    for cuts in (world.cut, world.deaf, world.management_cut, world.paths_cut):
        cuts.clear()
    for one in world.hosts.values():
        one.broker, one.paused, one.prober = True, False, True
        if not one.up or one.stopped:
            one.restart()


def scenario(world: World, rounds: int = 5, disturb: Disturbance = disturb) -> World:
    world.delay_s = world.random.choice([0.05, 0.2, 0.8])
    run(world, 2.5 + world.delay_s)
    for _ in range(rounds):
        disturb(world)
        run(world, 0.2 + world.random.random() * 3)
        if world.random.random() < 0.5:
            repair(world)
            run(world, world.random.random())
        if world.violations or world.over:
            break
    return world


def should_step(world: World) -> bool:
    """A majority of the electorate is well and connected, and has hosts for all ranks."""
    hosts = world.hosts
    accepted = [one.accepted for one in hosts.values() if one.accepted is not None]
    if not accepted:
        return False
    newest = max(accepted, key=lambda one: one.number)
    electors = dict(name.split("/") for name in newest.electorate)
    core = world.job_core()
    well = {
        one.name for one in hosts.values()
        if one.in_job and one.works and one.broker and one.prober and not one.stopped
        and one.name in core
    }  # fmt: skip
    whole = {a for a in well if all(a == b or world.connected(a, b) for b in well)}
    voters = [name for name in whole if electors.get(name) == hosts[name].incarnation]
    holds_state = any(
        hosts[name].committed and hosts[name].process in newest.slots for name in whole
    )
    nodes = next(one.nodes for one in hosts.values() if one.in_job)
    managed = all(world.manages(a, b) for a, b in itertools.combinations(whole, 2))
    return (
        whole == well and managed and holds_state and len(whole) >= nodes
        and 2 * len(voters) > len(electors)
    )  # fmt: skip


@dataclass
class Outcome:
    """``problem``: what must not be; "" if nothing. ``expected``: how often it had to step."""

    problem: str = ""
    expected: int = 0
    takeovers: int = 0


def play(world: World, rounds: int = 5, disturb: Disturbance = disturb) -> Outcome:
    """A whole scenario: what remains of it, and then the repair."""
    scenario(world, rounds, disturb)
    outcome = Outcome()
    for mend in (lambda _: None, repair):
        if world.violations or world.over or outcome.problem:
            break
        mend(world)
        outcome.expected += should_step(world)
        outcome.problem = settle(world)
    if world.violations:
        outcome.problem = world.violations[0]
    outcome.takeovers = world.takeovers
    return outcome


def settle(world: World) -> str:
    """Run on as it is; why the job stands still although it should not, or "" if it steps."""
    expected = should_step(world)
    run(world, SETTLE_S)
    step = world.step
    run(world, STEPPING_S)
    if world.step > step or world.over:
        return ""
    phases = [one.fields for one in world.records if one.kind == "phase"]
    last = phases[-1] if phases else {}
    if expected and should_step(world):
        return f"stands at step {step} in generation {world.progress[0]}: {last}"
    return ""


__all__ = [
    "JOB",
    "Outcome",
    "blind",
    "cut_off_in_a_takeover",
    "large",
    "one_host",
    "play",
    "repair",
    "run",
    "settle",
    "small",
    "split",
    "split_after_a_reboot",
]
