"""Processes that run NCCL, and the variables of those that an operator names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabricd.doctor.machine import Machine, ToolError
from fabricd.doctor.tree import Tree

CHILD = "fabricd.doctor.process_scan"


@dataclass(frozen=True, slots=True)
class Processes:
    """What was found. ``jobs``: pids; ``environments``: pid → its variables about NCCL."""

    jobs: tuple[int, ...] = ()
    environments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


def processes(tree: Tree, machine: Machine, pids: Sequence[int]) -> Processes:
    """Look at all processes, in a child that can be killed when it gets stuck."""
    try:
        answer = machine.child(CHILD, str(tree.root), *map(str, pids))
    except ToolError as error:
        tree.note_unexamined("training jobs", str(error))
        for pid in pids:
            tree.note_unexamined(f"environment of process {pid}", str(error))
        return Processes()
    if closed := answer.get("closed"):
        tree.note_unexamined(
            "training jobs", f"processes of other users are closed to us: {closed}"
        )
    return Processes(tuple(answer.get("jobs", ())), _environments(tree, answer, pids))


def _environments(
    tree: Tree, answer: Mapping[str, Any], pids: Sequence[int]
) -> dict[int, Mapping[str, str]]:
    found = {}
    for pid in pids:
        answered = answer["environments"][str(pid)]
        if text := answered.get("error"):
            tree.note_unexamined(f"environment of process {pid}", text)
        else:
            found[pid] = answered["variables"]
    return found
