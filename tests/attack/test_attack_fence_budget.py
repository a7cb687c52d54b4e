"""A job's own user, without rights on any host, keeps other jobs from being taken over.

His agents say of two of themselves that they are gone. On the network of the agents that is enough
for a fence in his own job; such fences are counted as his.
"""

import dataclasses

from job_world import TICK_S, World
from test_partitions import run

from fabric_train.messages.documents import (
    NETWORK,
    AgentDocument,
    JobGeneration,
    Member,
    ProcessState,
)
from telemetry.messages.documents import HostJob

HOSTS = [f"x{number}" for number in range(5)]
MALLORY = 1001


def made(seed=11):
    """A job that trains on hosts h, five other hosts x, and a small site's limit of fences."""
    world = World(seed, computes=1, others=len(HOSTS))
    world.policy = dataclasses.replace(world.policy, budget_least=2, budget_most=2)
    world.deciders["c0"] = world._decider("c0")
    run(world, 4)
    assert world.step
    return world


def his_job_says(world, lost, looks):
    """All agents of his job hear each other, and miss those on the hosts ``lost``."""
    agents = [f"{host}/m" for host in HOSTS]
    members = [Member(host, "m", f"{host}:1", f"{host}:2", "t") for host in HOSTS]
    generation = JobGeneration(
        1, 0, [f"{host}/p" for host in HOSTS], HOSTS, agents, agents, members, "x0:2", formed=True
    )
    for host in HOSTS:
        process = ProcessState(
            f"{host}/p", "warm", layout="L", acknowledged=1, recovered=1, committed=1, step=5,
            software={NETWORK: "agents"},
        )  # fmt: skip
        document = AgentDocument(
            "his", host, "m", len(HOSTS), 0, 1, f"{host}:1", f"{host}:2", "t", [process],
            accepted=generation, running=1, looks=looks,
            hears=[one for one in HOSTS if one not in (*lost, host)],
            misses=[one for one in lost if one != host],
        )  # fmt: skip
        news = HostJob(job="his", incarnation="m", uid=MALLORY)
        world.deciders["c0"].host_job(host, "his", news, world.now, document=document)


def attacked(world, seconds, lost):
    for tick in range(round(seconds / TICK_S)):
        if tick % 4 == 0:
            his_job_says(world, lost, tick + 1)
        world.tick()


def test_his_job_does_nothing_to_another_while_it_says_nothing():
    world = made()
    attacked(world, 4, [])
    world.hosts["h1"].up = False
    attacked(world, 8, [])
    assert world.takeovers == 1


def test_what_his_agents_say_of_each_other_costs_no_other_job_its_takeover():
    world = made()
    attacked(world, 4, ["x3", "x4"])
    assert {fence.job for fence in world.fences["c0"]} <= {"his"}
    world.hosts["h1"].up = False
    attacked(world, 8, ["x3", "x4"])
    assert world.violations == []
    assert world.takeovers == 1
