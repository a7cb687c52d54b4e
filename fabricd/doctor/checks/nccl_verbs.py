"""Check of the NCCL_IB_* variables: malformed, contradicting each other, or the host's facts."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from fabricd.doctor.checks.nccl_names import (
    IB_NUMBERS,
    IB_WORDS,
    NameList,
    closest,
    known,
    number_of,
)
from fabricd.doctor.checks.nccl_wide import uses_plugin
from fabricd.doctor.facts import ROCE_V2, HostFacts, NcclEnvironment, VerbsPort
from fabricd.doctor.finding import Finding, Severity

FAMILIES = {"AF_INET": 4, "AF_INET6": 6}
SHORT_TIMEOUT = 14
LONG_TIMEOUT = 22
_TICK_US = 4.096


def fights(facts: HostFacts) -> Iterator[Finding]:
    """All of them, for each environment."""
    for environment in facts.nccl:
        yield from _malformed(environment)
        yield from _devices(facts, environment)
        yield from _gids(facts, environment)
        yield from _timeouts(environment)
        yield from _classes(environment)
        yield from _memory(facts, environment)
        yield from _own_recovery(environment)


def _number(environment: NcclEnvironment, name: str, otherwise: int) -> int:
    text = environment.value(name)
    number = number_of(text) if text else None
    return otherwise if number is None else number


def _malformed(environment: NcclEnvironment) -> Iterator[Finding]:
    for name, text in sorted(environment.values().items()):
        if not name.startswith("NCCL_IB_"):
            continue
        if not known(name):
            close = closest(name, (*IB_NUMBERS, *IB_WORDS))
            advice = f"Did you mean {close}?" if close else "Look it up in NCCL's documentation."
            yield Finding(
                Severity.WARNING if close else Severity.NOTE, environment.source,
                f"{name} is no variable of NCCL that this release knows.", advice,
            )  # fmt: skip
        elif (limits := IB_NUMBERS.get(name)) is not None and text:
            number = number_of(text)
            if number is None:
                yield Finding(
                    Severity.WARNING, environment.source,
                    f'{name}="{text}" is no number: NCCL reads its leading digits, else 0, '
                    "without a word.", f"A number from {limits[0]} to {limits[1]}, or unset it.",
                )  # fmt: skip
            elif not limits[0] <= number <= limits[1]:
                yield Finding(
                    Severity.WARNING, environment.source,
                    f"{name}={text} is outside {limits[0]} to {limits[1]}.", "Correct it.",
                )  # fmt: skip
    family = environment.value("NCCL_IB_ADDR_FAMILY")
    if family and family not in FAMILIES:
        yield Finding(
            Severity.WARNING, environment.source,
            f"NCCL_IB_ADDR_FAMILY={family} is neither AF_INET nor AF_INET6: AF_INET holds.",
            "Correct it.",
        )  # fmt: skip


def _devices(facts: HostFacts, environment: NcclEnvironment) -> Iterator[Finding]:
    text = environment.value("NCCL_IB_HCA")
    yield from _off(facts, environment, text)
    if not text or not facts.ports:
        return
    names = NameList.parse(text)
    taken = [p for p in facts.ports if names.selects(p.device, p.number)]
    by_netdev = {n for n in facts.netdevs if names.items and names.matches(n) != names.exclude}
    if not taken and not (by_netdev and not names.exclude):
        listed = ", ".join(f"{port.device}:{port.number}" for port in facts.ports)
        yield Finding(
            Severity.CRITICAL, environment.source,
            f"NCCL_IB_HCA={text} takes no RDMA port of this host ({listed}).",
            "Name devices that are here; a list for a mixed cluster may name several makes.",
        )  # fmt: skip
        return
    covered = {name for port in taken for name in port.netdevs}
    covered |= set() if names.exclude else by_netdev
    verbs_rails = {name for port in facts.ports for name in port.netdevs} & set(facts.rails)
    left_out = sorted(verbs_rails - covered)
    if left_out:
        yield Finding(
            Severity.WARNING, environment.source,
            f"NCCL_IB_HCA={text} leaves out the rails {', '.join(left_out)}.",
            "Name their devices too: a job can move its traffic only to rails that it has.",
        )  # fmt: skip
    down = [str(port) for port in taken if not names.exclude and port.state and not port.active]
    if down:
        yield Finding(
            Severity.NOTE, environment.source,
            f"NCCL_IB_HCA={text} names ports that are not ACTIVE: {', '.join(down)}.",
            "See port-state.",
        )  # fmt: skip


def _off(facts: HostFacts, environment: NcclEnvironment, hca: str | None) -> Iterator[Finding]:
    """Variables that turn verbs off on a host that has them."""
    if environment.value("FABRIC_GPUDIRECT") == "1" and environment.value("FABRIC_VERBS") != "1":
        yield Finding(
            Severity.WARNING, environment.source,
            "FABRIC_GPUDIRECT=1 has no effect without FABRIC_VERBS=1.",
            "Set both on every rank, or neither.",
        )  # fmt: skip
    if not facts.verbs:
        return
    disabled = environment.value("NCCL_IB_DISABLE") == "1"
    if disabled and uses_plugin(environment) and environment.value("FABRIC_VERBS") == "1":
        yield Finding(
            Severity.WARNING, environment.source,
            "NCCL_IB_DISABLE=1 turns verbs off in the plugin, too: FABRIC_VERBS=1 has no effect.",
            "Unset NCCL_IB_DISABLE to try verbs, or FABRIC_VERBS to have TCP.",
        )  # fmt: skip
        return
    for name in ("NCCL_IB_DISABLE", "FABRIC_VERBS"):
        off = "1" if name == "NCCL_IB_DISABLE" else "0"
        if environment.value(name) == off:
            chooses = f", and NCCL_IB_HCA={hca} chooses among them." if hca else "."
            yield Finding(
                Severity.WARNING if hca else Severity.NOTE, environment.source,
                f"{name}={off} turns verbs off, although this host has verbs devices{chooses}",
                "Unset it, unless TCP is wanted."
                if name == "NCCL_IB_DISABLE"
                else "FABRIC_VERBS=1 tries verbs (docs/design/rdma.md); unset, it carries TCP.",
            )  # fmt: skip


def _gids(facts: HostFacts, environment: NcclEnvironment) -> Iterator[Finding]:
    index = _number(environment, "NCCL_IB_GID_INDEX", -1)
    roce = [port for port in facts.ports if port.roce and port.active]
    if index >= 0 and roce:
        bad = [f"{port}: {reason}" for port in roce if (reason := _unfit(port, index))]
        overridden = [
            name for name in ("NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY",
                              "NCCL_IB_ADDR_RANGE") if environment.value(name)
        ]  # fmt: skip
        seen = f"NCCL_IB_GID_INDEX={index} names one place in the GID tables of all ports"
        seen += f"; {', '.join(overridden)} is not looked at then" if overridden else ""
        if bad:
            yield Finding(
                Severity.CRITICAL, environment.source, f"{seen}, and it is wrong on some.",
                "Unset it: the scan by family and RoCE version finds each port's own.", tuple(bad),
            )  # fmt: skip
        else:
            yield Finding(
                Severity.WARNING, environment.source,
                f"{seen}. GIDs move after a flap or when an address changes.",
                "Unset it: the scan by family and RoCE version follows them.",
            )  # fmt: skip
    if index < 0:
        yield from _scan(roce, environment)


def _scan(roce: list[VerbsPort], environment: NcclEnvironment) -> Iterator[Finding]:
    """The filters of the scan must leave a GID on each port."""
    family_text = environment.value("NCCL_IB_ADDR_FAMILY") or ""
    range_text = environment.value("NCCL_IB_ADDR_RANGE") or ""
    version = FAMILIES.get(family_text, 4)
    if range_text:
        try:
            network = ip_network(range_text, strict=False)
        except ValueError:
            yield Finding(
                Severity.WARNING, environment.source,
                f"NCCL_IB_ADDR_RANGE={range_text} is no subnet, and so ignored.",
                "Write it as 10.0.0.0/8.",
            )  # fmt: skip
            return
        if network.version != version:
            yield Finding(
                Severity.WARNING, environment.source,
                f"NCCL_IB_ADDR_RANGE={range_text} is IPv{network.version}, "
                f"NCCL_IB_ADDR_FAMILY={family_text or 'AF_INET (the default)'}: the range is "
                "ignored.", "Let both be of one family.",
            )  # fmt: skip
            return
        outside = [
            str(port) for port in roce
            if port.usable_gids and not any(gid.address in network for gid in port.usable_gids)
        ]  # fmt: skip
        if outside:
            yield Finding(
                Severity.CRITICAL, environment.source,
                f"NCCL_IB_ADDR_RANGE={range_text} holds no GID of {', '.join(outside)}.",
                "Widen the range to all rails' subnets.",
            )  # fmt: skip
    elif family_text in FAMILIES:
        without = [
            str(port) for port in roce
            if port.usable_gids
            and not any(g.address and g.address.version == version for g in port.usable_gids)
        ]  # fmt: skip
        if without:
            yield Finding(
                Severity.CRITICAL, environment.source,
                f"NCCL_IB_ADDR_FAMILY={family_text}, but {', '.join(without)} has no such GID.",
                "Unset it, or give all rails addresses of that family.",
            )  # fmt: skip
    if _number(environment, "NCCL_IB_ROCE_VERSION_NUM", 2) == 1 and roce:
        yield Finding(
            Severity.WARNING, environment.source,
            "NCCL_IB_ROCE_VERSION_NUM=1: no router forwards RoCE v1.",
            "Unset it.",
        )  # fmt: skip


def _unfit(port: VerbsPort, index: int) -> str:
    gid = next((gid for gid in port.gids if gid.index == index), None)
    if gid is None or gid.empty:
        return f"entry {index} is empty" if gid is None or not gid.error else gid.error
    if gid.kind and gid.kind != ROCE_V2:
        return f"entry {index} is {gid.kind}"
    return f"entry {index} is link-local ({gid.value})" if gid.link_local else ""


def _timeouts(environment: NcclEnvironment) -> Iterator[Finding]:
    timeout = _number(environment, "NCCL_IB_TIMEOUT", 20)
    retries = _number(environment, "NCCL_IB_RETRY_CNT", 7)
    if not (0 <= timeout <= 31 and 0 <= retries <= 7):
        return
    seconds = _TICK_US * 2**timeout / 1e6 * (retries + 1)
    given = f"NCCL_IB_TIMEOUT={timeout} and NCCL_IB_RETRY_CNT={retries}"
    if timeout == 0:
        yield Finding(
            Severity.CRITICAL, environment.source,
            "NCCL_IB_TIMEOUT=0 means that the NIC waits for ever.", "20 is NCCL's own.",
        )  # fmt: skip
    elif timeout < SHORT_TIMEOUT:
        yield Finding(
            Severity.WARNING, environment.source,
            f"{given} give up after {seconds * 1000:.3g} ms: congestion ends connections.",
            "18 to 22; the plugin finds dead paths by itself, earlier than the NIC.",
        )  # fmt: skip
    elif timeout > LONG_TIMEOUT:
        yield Finding(
            Severity.WARNING, environment.source,
            f"{given} give up after {seconds:.3g} s or more.",
            "18 to 22: NCCL's own transport waits as long for a dead link.",
        )  # fmt: skip
    elif retries == 0:
        yield Finding(
            Severity.WARNING, environment.source,
            "NCCL_IB_RETRY_CNT=0: one packet that is lost ends a connection.", "7 is NCCL's own.",
        )  # fmt: skip


def _classes(environment: NcclEnvironment) -> Iterator[Finding]:
    fifo = environment.value("NCCL_IB_FIFO_TC")
    data = environment.value("NCCL_IB_TC")
    if fifo and fifo != "-1" and number_of(fifo) != number_of(data or "0"):
        yield Finding(
            Severity.WARNING, environment.source,
            f"NCCL_IB_FIFO_TC={fifo} and NCCL_IB_TC={data or 'unset (0)'} differ: the "
            "clear-to-send travels in another class than the data.",
            "One class for both, unless switches treat the other one as better on purpose; the "
            "plugin uses one for all queue pairs of a path.",
        )  # fmt: skip


def _memory(facts: HostFacts, environment: NcclEnvironment) -> Iterator[Finding]:
    level = environment.value("NCCL_NET_GDR_LEVEL")
    memory = facts.peer_memory
    if level and level.upper() in ("LOC", "0") and memory.gpus and memory.modules:
        yield Finding(
            Severity.WARNING, environment.source,
            f"NCCL_NET_GDR_LEVEL={level} turns GPUDirect off, although a peer-memory module is "
            "loaded.", "Unset it, unless it works around ACS or a NIC's fault.",
        )  # fmt: skip
    dmabuf = environment.value("NCCL_DMABUF_ENABLE")
    if dmabuf == "0" and memory.gpus and facts.verbs and not memory.modules:
        yield Finding(
            Severity.WARNING, environment.source,
            "NCCL_DMABUF_ENABLE=0 and no peer-memory module: no way is left from NIC to GPU.",
            "Unset it, or modprobe nvidia_peermem.",
        )  # fmt: skip
    if environment.value("NCCL_GDR_FLUSH_DISABLE") == "1":
        yield Finding(
            Severity.WARNING, environment.source,
            "NCCL_GDR_FLUSH_DISABLE=1: a GPU may read data before they have arrived.",
            "Unset it, unless the platform orders such writes.",
        )  # fmt: skip


def _own_recovery(environment: NcclEnvironment) -> Iterator[Finding]:
    if not uses_plugin(environment):
        return
    own = sorted(name for name in environment.values() if name.startswith("NCCL_IB_RESILIENCY_"))
    if own:
        yield Finding(
            Severity.NOTE, environment.source,
            f"{', '.join(own)} concern NCCL's own transport; the plugin does not read them.",
            "Nothing: the plugin recovers by itself.",
        )  # fmt: skip
    if environment.value("NCCL_IB_MERGE_NICS") == "1":
        yield Finding(
            Severity.NOTE, environment.source,
            "NCCL_IB_MERGE_NICS=1 concerns NCCL's own transport; the plugin merges no NICs.",
            "Nothing: a NIC that fails takes nothing of its neighbour along.",
        )  # fmt: skip
