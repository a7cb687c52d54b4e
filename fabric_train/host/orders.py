"""What is wrong with an order of a fabric-compute, before anything of it is done. Pure."""

from __future__ import annotations

from collections.abc import Container

from fabric_train.host.effects import Setup
from fabric_train.host.job_key import JobKey
from fabric_train.messages.addresses import AddressError, split
from fabric_train.messages.documents import JobGeneration, JobOrder


def problem_of(order: JobOrder, setup: Setup, processes: Container[str]) -> str:
    """What is wrong with ``order``, for people; empty: nothing.

    ``processes`` are those that this host knows, alive or not.
    """
    if order.incarnation != setup.incarnation:
        return f"it is for incarnation {order.incarnation:.40}, this is {setup.incarnation}"
    if order.phase not in ("proposed", "running"):
        return ""
    if order.generation is None:
        return f"phase {order.phase} without a generation"
    if order.phase == "running" and order.generation.parked:
        return f"generation {order.generation.number} is parked: it cannot run"
    return _problem(order.generation, setup, processes)


def _problem(generation: JobGeneration, setup: Setup, processes: Container[str]) -> str:
    members = {member.host: member for member in generation.members}
    if not 0 <= generation.base < generation.number:
        return f"generation {generation.number} follows {generation.base}"
    if len(generation.slots) != setup.world or len(generation.hosts) != setup.world:
        return f"{len(generation.slots)} slots, and the job has {setup.world} ranks"
    if len(set(generation.slots)) != setup.world:
        return "a process has two ranks"
    known = generation.parked or members.keys() >= set(generation.hosts)
    if len(members) != len(generation.members) or not known:
        return "a host with a rank is no member, or a member is named twice"
    mine = members.get(setup.host)
    if mine is not None and mine.incarnation != setup.incarnation:
        return f"it names incarnation {mine.incarnation:.40} of this host"
    for slot, host in zip(generation.slots, generation.hosts, strict=True):
        if (host == setup.host) != (slot in processes):
            return f"{slot:.80} on {host:.80} is not as this host knows it"
    try:
        for text in (generation.store, *(one.address for one in generation.members)):
            split(text)
    except AddressError as error:
        return str(error)
    if not generation.parked and not generation.store_host:
        return f"its store {generation.store:.80} is no member's"
    return _forged(generation, setup.key) if setup.key else ""


def _forged(generation: JobGeneration, key: JobKey) -> str:
    """What nobody who has the key has said, whoever orders it."""
    for member in generation.members:
        if not key.is_sealed(member):
            return f"{member.host:.80} has no seal of the job's key"
    return ""
