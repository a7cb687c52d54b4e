"""Check of NCCL's variables that concern every transport: plugin unused, rails left out."""

from __future__ import annotations

from collections.abc import Iterator

from fabricd.doctor.checks.nccl_names import NameList
from fabricd.doctor.facts import HostFacts, NcclEnvironment
from fabricd.doctor.finding import Finding, Severity

PLUGIN = "FABRIC"
MOST_JOB = 63
"""Bytes of a job's name in a stats page."""
_OF_JOBS = ("FABRIC_RUN_DIR", "FABRIC_JOB", "FABRIC_FAILOVER", "FABRIC_DEADLINE", "FABRIC_STRIPE")
_OURS = ("fabric", "nccl-net-fabric", "rccl-net-fabric")


def fights(facts: HostFacts) -> Iterator[Finding]:
    """Variables that keep the plugin out, name no rail, or contradict each other."""
    for environment in facts.nccl:
        yield from _plugin(environment)
        yield from _interfaces(facts, environment)
        yield from _others(environment)
        yield from _file(environment)
    yield from _differences(facts)


def uses_plugin(environment: NcclEnvironment) -> bool:
    """Whether NCCL_NET_PLUGIN names the plugin."""
    text = environment.value("NCCL_NET_PLUGIN") or ""
    return any(any(part in item for part in _OURS) for item in text.split(","))


def _plugin(environment: NcclEnvironment) -> Iterator[Finding]:
    named = environment.value("NCCL_NET_PLUGIN")
    net = environment.value("NCCL_NET")
    source = environment.source
    ours = uses_plugin(environment)
    if net and net.upper() != PLUGIN and (ours or net.upper() in ("IB", "SOCKET")):
        severity = Severity.CRITICAL if ours else Severity.NOTE
        yield Finding(
            severity, source, f"NCCL_NET={net} makes NCCL use that network, not the plugin.",
            f"Unset NCCL_NET, or set NCCL_NET={PLUGIN}, so that NCCL fails rather than falls back.",
        )  # fmt: skip
    fabric = any(name in environment.variables for name in _OF_JOBS)
    if fabric and not ours:
        text = "not set" if named is None else f'"{named}"'
        yield Finding(
            Severity.WARNING, source,
            f"A job's FABRIC_ variables are set, but NCCL_NET_PLUGIN is {text}: the plugin is "
            "not used.",
            'Set what `fabricctl plugin env` prints: eval "$(fabricctl plugin env)".',
        )  # fmt: skip
    job = environment.value("FABRIC_JOB") or ""
    if len(job.encode(errors="replace")) > MOST_JOB:
        yield Finding(
            Severity.WARNING, source,
            f"FABRIC_JOB has more than {MOST_JOB} bytes: the rest is cut off, and two jobs that "
            "begin alike are one.",
            "Take a shorter name.",
        )  # fmt: skip
    if ours and environment.library_found is False:
        yield Finding(
            Severity.CRITICAL, source,
            f"NCCL_NET_PLUGIN={named} names a library that is not there: NCCL falls back to its "
            "own transports without an error.",
            "Name it by its absolute path, mount it into the container, or put its directory in "
            "LD_LIBRARY_PATH.",
        )  # fmt: skip
    if ours and environment.value("FABRIC_FAILOVER") == "0":
        yield Finding(
            Severity.WARNING, source, "FABRIC_FAILOVER=0: a link that dies ends the job.",
            "Unset it; it is there to compare with stock transports.",
        )  # fmt: skip


def _interfaces(facts: HostFacts, environment: NcclEnvironment) -> Iterator[Finding]:
    text = environment.value("NCCL_SOCKET_IFNAME")
    if not text or not facts.netdevs:
        return
    names = NameList.parse(text)
    taken = [name for name in facts.netdevs if names.selects(name)]
    if not taken:
        yield Finding(
            Severity.CRITICAL, environment.source,
            f"NCCL_SOCKET_IFNAME={text} leaves no interface of {', '.join(facts.netdevs)}.",
            "Name interfaces of this host: prefixes, `=` for exact names, `^` for all but these.",
        )  # fmt: skip
        return
    if decided_by_hca(facts, environment) or not facts.rails:
        return  # then this variable is NCCL's bootstrap's alone
    left_out = [rail for rail in facts.rails if rail in facts.netdevs and rail not in taken]
    if left_out and len(left_out) < len(facts.rails):
        yield Finding(
            Severity.WARNING, environment.source,
            f"NCCL_SOCKET_IFNAME={text} leaves out the rails {', '.join(left_out)}.",
            "Name a prefix of all rails, or list them.",
        )  # fmt: skip
    elif left_out:
        yield Finding(
            Severity.WARNING, environment.source,
            f"NCCL_SOCKET_IFNAME={text} takes {', '.join(taken[:8])}, none of which is a rail "
            f"({', '.join(facts.rails)}).",
            "For a management interface set NCCL_IB_HCA as well, which then decides on rails.",
        )  # fmt: skip
    bonded = [name for name in taken if facts.netdevs[name].master in taken]
    if bonded:
        bond = facts.netdevs[bonded[0]].master
        yield Finding(
            Severity.WARNING, environment.source,
            f"NCCL_SOCKET_IFNAME={text} takes {bond} and its members {', '.join(bonded)}.",
            f"Name {bond} exactly (`={bond}`): a bond is one rail.",
        )  # fmt: skip


def decided_by_hca(facts: HostFacts, environment: NcclEnvironment) -> bool:
    """Whether NCCL_IB_HCA decides alone which devices are rails (docs/reference/plugin.md)."""
    names = NameList.parse(environment.value("NCCL_IB_HCA") or "")
    if names.exclude or not names.items:
        return False
    return any(names.matches(port.device, port.number) for port in facts.ports) or any(
        names.matches(name) for name in facts.netdevs
    )


def _others(environment: NcclEnvironment) -> Iterator[Finding]:
    family = environment.value("NCCL_SOCKET_FAMILY")
    if family and family not in ("AF_INET", "AF_INET6"):
        yield Finding(
            Severity.WARNING, environment.source,
            f"NCCL_SOCKET_FAMILY={family} is neither AF_INET nor AF_INET6, and so ignored.",
            "Correct it.",
        )  # fmt: skip
    protocols = environment.value("NCCL_PROTO")
    if protocols and forces_ll128(protocols):
        yield Finding(
            Severity.CRITICAL, environment.source,
            f"NCCL_PROTO={protocols} has NCCL use LL128 on any path. Where data goes through host "
            "memory, over TCP and with NCCL's own sockets as well, a GPU may see half a line of "
            "128 bytes: wrong numbers, and no error.",
            "Unset it: NCCL takes LL128 by itself where it is safe. To leave one out, leave out "
            "both: NCCL_PROTO=^LL,LL128.",
        )  # fmt: skip
    if not uses_plugin(environment):
        return
    if environment.value("NCCL_NET_FORCE_MERGE"):
        yield Finding(
            Severity.WARNING, environment.source,
            "NCCL_NET_FORCE_MERGE asks NCCL to fuse NICs; the plugin shows each NIC by itself and "
            "refuses to.", "Unset it: the plugin uses every NIC, and loses one alone.",
        )  # fmt: skip


def forces_ll128(text: str) -> bool:
    """Whether an NCCL_PROTO takes LL128 for some collective, without NCCL's own look at the path.

    Lists as NCCL 2.30's ``parseList`` (src/graph/tuning.cc) reads them: ``[collective:]names``,
    ``;`` between them, and ``^`` for all but these.
    """
    for part in text.lower().split(";"):
        names = part.partition(":")[2] or part
        excluded = names.startswith("^")
        if ("ll128" in names.removeprefix("^").split(",")) != excluded:
            return True
    return False


def _file(environment: NcclEnvironment) -> Iterator[Finding]:
    both = [
        f"{name}: {environment.variables[name]} here, {value} in {environment.file_name}"
        for name, value in sorted(environment.file.items())
        if environment.variables.get(name, value) != value
    ]
    if both:
        yield Finding(
            Severity.NOTE, environment.source,
            f"{environment.file_name} and the environment differ; the environment counts.",
            "Keep each variable in one place.", tuple(both),
        )  # fmt: skip


def _differences(facts: HostFacts) -> Iterator[Finding]:
    """Ranks of one job have to agree; of this shell it is not known that it is one."""
    ranks = [environment for environment in facts.nccl if environment.source.startswith("process")]
    names = sorted({name for rank in ranks for name in rank.variables if name not in _OWN})
    rows = tuple(
        f"{name}: " + ", ".join(f"{x.value(name) or 'unset'} ({x.source})" for x in ranks)
        for name in names if len({rank.value(name) for rank in ranks}) > 1
    )  # fmt: skip
    if rows:
        yield Finding(
            Severity.WARNING, "processes", "The processes have different values of NCCL variables.",
            "Set them alike for all ranks of a job.", rows,
        )  # fmt: skip


_OWN = frozenset({"FABRIC_JOB", "FABRIC_INCARNATION", "NCCL_HOSTID", "NCCL_DEBUG_FILE"})
"""Variables that differ between ranks on purpose."""
