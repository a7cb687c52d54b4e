"""Check of PFC, DSCP and traffic class: does RoCE travel in a class that is lossless?"""

from __future__ import annotations

from collections.abc import Iterator

from fabricd.doctor.checks.nccl_names import number_of
from fabricd.doctor.facts import HostFacts, NcclEnvironment, Qos
from fabricd.doctor.finding import Finding, Severity


def traffic_classes(facts: HostFacts) -> Iterator[Finding]:
    """PFC off, different between rails, or on for another priority than the traffic's."""
    if not facts.qos:
        return
    shapes = {(qos.pfc, qos.trust, tuple(sorted(qos.priority_of_dscp.items())))
              for qos in facts.qos}  # fmt: skip
    rows = tuple(_row(qos) for qos in facts.qos)
    if len(shapes) > 1:
        yield Finding(
            Severity.WARNING, "host", "The rails differ in PFC, trust or DSCP mapping.",
            "Give all rails the same settings, and their switch ports too.", rows,
        )  # fmt: skip
    without = [qos.netdev for qos in facts.qos if not any(qos.pfc)]
    if without:
        yield Finding(
            Severity.NOTE, ", ".join(without), "PFC is off for every priority.",
            "RoCE goes on over a lossy network, slowly where packets are lost: turn PFC or ECN on "
            "at NIC and switch, or run adaptive, lossy-tolerant RoCE on purpose.", rows,
        )  # fmt: skip
    for environment in facts.nccl:
        yield from _class_of(facts, environment)


def _class_of(facts: HostFacts, environment: NcclEnvironment) -> Iterator[Finding]:
    text = environment.value("NCCL_IB_TC")
    number = number_of(text) if text else 0
    if number is None:
        return  # nccl-ib-variables reports it
    asked = max(number, 0)  # -1 is NCCL's own default, and means 0
    for qos in facts.qos:
        forced = _forced(facts, qos.netdev)
        traffic_class = asked if forced is None else forced
        dscp = (traffic_class & 0xFF) >> 2
        given = f"NCCL_IB_TC={text}" if text else "NCCL_IB_TC is not set"
        if forced is not None:
            given += f" (the device forces traffic class {forced})"
            if text and asked != forced:
                yield Finding(
                    Severity.WARNING, qos.netdev,
                    f"NCCL_IB_TC={text} in {environment.source} has no effect: the device forces "
                    f"traffic class {forced}.",
                    "Set both alike, or write 0 to its tc/1/traffic_class in sysfs.",
                )  # fmt: skip
        if not any(qos.pfc):
            continue
        lossless = ", ".join(str(number) for number, on in enumerate(qos.pfc) if on)
        if qos.trust == "pcp":
            if traffic_class:
                yield Finding(
                    Severity.WARNING, qos.netdev,
                    f"{given} in {environment.source}, but {qos.netdev} trusts the VLAN's priority "
                    f"(PCP), not DSCP; PFC is on for priority {lossless}.",
                    f"`mlnx_qos -i {qos.netdev} --trust dscp`, or use NCCL_IB_SL with a VLAN.",
                )  # fmt: skip
            continue
        priority = qos.priority_of_dscp.get(dscp, 0)
        if not qos.pfc[priority]:
            fitting = sorted(d for d, p in qos.priority_of_dscp.items() if qos.pfc[p])
            advice = f"Set NCCL_IB_TC={fitting[0] << 2}" if fitting else "Map a DSCP to it"
            yield Finding(
                Severity.WARNING, qos.netdev,
                f"{given} in {environment.source}: RoCE has DSCP {dscp}, priority {priority}, for "
                f"which PFC is off; it is on for priority {lossless}.",
                f"{advice}, on every host, with the switch mapping the same DSCP.",
            )  # fmt: skip


def _forced(facts: HostFacts, netdev: str) -> int | None:
    """The traffic class that a rail's device forces on all queue pairs."""
    classes = [port.traffic_class for port in facts.ports if netdev in port.netdevs]
    return next((number for number in classes if number is not None), None)


def _row(qos: Qos) -> str:
    on = ", ".join(str(number) for number, word in enumerate(qos.pfc) if word) or "none"
    return f"{qos.netdev}: PFC on for {on}; trust {qos.trust or 'unknown'} ({qos.source})"
