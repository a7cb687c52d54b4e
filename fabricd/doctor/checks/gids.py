"""Checks of RoCE ports' GID tables: is there an entry that a connection may use?"""

from __future__ import annotations

from collections.abc import Iterator

from fabricd.doctor.facts import GID_HEADER, ROCE_V2, HostFacts, VerbsPort
from fabricd.doctor.finding import Finding, Severity

MAX_ROWS = 32


def tables(facts: HostFacts) -> Iterator[Finding]:
    """Tables without a usable entry; entries that cannot be read; one family alone."""
    ports = [p for p in facts.ports if p.roce and p.active and facts.concerns(p)]
    # Without a configuration a port may be cabled and none of the job's, as long as others are.
    unusable = Severity.CRITICAL
    if not facts.configured and any(port.usable_gids for port in ports):
        unusable = Severity.WARNING
    for port in ports:
        yield from _table(port, unusable)
    families = {
        port: {gid.address.version for gid in port.usable_gids if gid.address is not None}
        for port in ports
    }
    known = {port: versions for port, versions in families.items() if versions}
    if known and not set.intersection(*known.values()):
        rows = tuple(
            f"{port}: {', '.join(f'IPv{version}' for version in sorted(versions))}"
            for port, versions in known.items()
        )
        yield Finding(
            Severity.WARNING, "host", "The ports' GIDs have no address family in common.",
            "Give all rails addresses of one family; NCCL_IB_ADDR_FAMILY names one for all.", rows,
        )  # fmt: skip


def namespaces(facts: HostFacts) -> Iterator[Finding]:
    """GIDs whose IP address is not one of this network namespace's."""
    if facts.addresses is None:
        return
    here = {address.interface.ip for address in facts.addresses}
    for port in facts.ports:
        usable = port.usable_gids
        if not usable or not port.active or not facts.concerns(port):
            continue
        outside = [gid for gid in usable if gid.address not in here]
        if len(outside) == len(usable):
            listed = ", ".join(str(gid.address) for gid in outside[:4])
            yield Finding(
                Severity.CRITICAL, str(port),
                f"No GID of {port} has an address of this network namespace ({listed}).",
                "Use the host's network (`hostNetwork: true`), or move the NIC's interface and "
                "RDMA device into the pod (SR-IOV; `rdma system set netns exclusive`).",
                _rows(port),
            )  # fmt: skip


def _table(port: VerbsPort, unusable: Severity) -> Iterator[Finding]:
    filled = [gid for gid in port.gids if not gid.error and not gid.empty]
    v2 = [gid for gid in filled if gid.kind == ROCE_V2]
    if port.usable_gids:
        unread = [gid for gid in port.gids if gid.error]
        if unread:
            yield Finding(
                Severity.NOTE, str(port),
                f"{len(unread)} entries of the GID table cannot be read ({unread[0].error}).",
                "Nothing: such entries are skipped. Do not set NCCL_IB_GID_INDEX.", _rows(port),
            )  # fmt: skip
        addresses = [gid.address for gid in port.usable_gids if gid.address is not None]
        if all(address.version == 6 for address in addresses):
            yield Finding(
                Severity.NOTE, str(port),
                f"{port} has GIDs of IPv6 addresses alone.",
                "Set NCCL_IB_ADDR_FAMILY=AF_INET6 for NCCL's own transport; the plugin falls back "
                "by itself.", _rows(port),
            )  # fmt: skip
        return
    if not filled:
        seen = f"The GID table of {port} has no entry."
        action = "Give its interface an IP address, and bring it up."
    elif not v2 and all(gid.kind for gid in filled):
        seen = f"The GID table of {port} has no RoCE v2 entry."
        action = "Turn RoCE v2 on: firmware (`mlxconfig`), or configfs default_roce_mode."
    elif v2:
        seen = f"The GID table of {port} has link-local RoCE v2 entries (fe80::) alone."
        action = (
            "Give its interface a global IP address. In a pod: the address of the host's "
            "interface gives no GID here (`hostNetwork: true`, or the device moved in)."
        )
    else:
        seen = f"The types of {port}'s GIDs cannot be read."
        action = "Look at gid_attrs/types in sysfs: the container may mount /sys in part."
    yield Finding(unusable, str(port), seen, action, _rows(port))


def _rows(port: VerbsPort) -> tuple[str, ...]:
    rows = [gid.line() for gid in port.gids[:MAX_ROWS]]
    more = len(port.gids) - len(rows)
    return (GID_HEADER, *rows, *([f"… {more} more"] if more > 0 else []))
