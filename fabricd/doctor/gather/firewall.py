"""Rules of netfilter that can stop RoCE v2, from ``nft -j list ruleset``.

iptables of today writes nftables; the legacy one is not seen. Hardware RoCE does not pass through
netfilter at all: such rules concern soft-RoCE, and guests behind this host.
"""

from __future__ import annotations

import json
from typing import Any

from fabricd.doctor.facts import Firewall
from fabricd.doctor.machine import Machine, ToolError
from fabricd.doctor.tree import Tree

ROCE_PORT = 4791


def rules(tree: Tree, machine: Machine) -> Firewall | None:
    """The rules that matter; None when they cannot be listed."""
    try:
        return parse(machine.run(["nft", "-j", "list", "ruleset"]))
    except (ToolError, ValueError, RecursionError) as error:
        tree.note_unexamined("firewall rules", f"{error} (root may list them)")
        return None


def parse(text: str) -> Firewall:
    """What ``nft -j list ruleset`` printed.

    Raises:
        ValueError: it is no such JSON.
    """
    document = json.loads(text or '{"nftables": []}')
    items = document.get("nftables") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise ValueError("nft printed no list 'nftables'")
    chains: dict[tuple[str, str, str], dict[str, Any]] = {}
    blocking = []
    accepting = set()
    for item in items:
        if not isinstance(item, dict):
            continue
        if isinstance(chain := item.get("chain"), dict):
            chains[_key(chain, "name")] = chain
        if isinstance(rule := item.get("rule"), dict) and _names_port(rule.get("expr")):
            if _has_verdict(rule["expr"], ("drop", "reject")):
                blocking.append(" ".join(_key(rule, "chain")))
            if _has_verdict(rule["expr"], ("accept",)):
                accepting.add(_key(rule, "chain")[:2])
    closed = [
        " ".join(key) for key, chain in chains.items()
        if chain.get("hook") == "input" and chain.get("policy") == "drop"
        and key[:2] not in accepting
    ]  # fmt: skip
    return Firewall(tuple(sorted(set(blocking))), tuple(sorted(closed)))


def _key(item: dict[str, Any], name: str) -> tuple[str, str, str]:
    return str(item.get("family")), str(item.get("table")), str(item.get(name))


def _names_port(expressions: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether a rule compares a destination port with 4791, alone, in a set or in a range."""
    if not isinstance(expressions, list):
        return False
    for expression in expressions:
        match = expression.get("match") if isinstance(expression, dict) else None
        if not isinstance(match, dict) or match.get("op") not in ("==", "in"):
            continue
        payload = match.get("left", {})
        payload = payload.get("payload", {}) if isinstance(payload, dict) else {}
        if not isinstance(payload, dict) or payload.get("field") != "dport":
            continue
        if payload.get("protocol") in ("udp", "th") and _covers(match.get("right")):
            return True
    return False


def _covers(right: Any) -> bool:  # noqa: ANN401 - JSON
    if isinstance(right, int):
        return right == ROCE_PORT
    if not isinstance(right, dict):
        return False
    if isinstance(ends := right.get("range"), list) and len(ends) == 2:
        low, high = ends
        return isinstance(low, int) and isinstance(high, int) and low <= ROCE_PORT <= high
    members = right.get("set")
    return isinstance(members, list) and any(_covers(member) for member in members)


def _has_verdict(expressions: list[Any], verdicts: tuple[str, ...]) -> bool:
    return any(isinstance(x, dict) and any(v in x for v in verdicts) for x in expressions)
