"""What ``torch.compile`` must not touch, and what it does to a job's exactness.

Dynamo traces whatever Python it comes across, so the gate before an optimizer's step would become
part of a compiled step. Our own modules stay outside of graphs. Importing dynamo takes seconds, so
a job that compiles nothing does not.

Compiled collectives need nothing of that: they call the job's groups as others do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_DYNAMO = "torch._dynamo"
_PACKAGE = "fabric_train"
REFUSAL = (
    "the gate before optimizer.step() cannot be part of a compiled graph: do not compile a whole "
    "training step, or optimizer.step(), with fullgraph=True"
)
ANEW = (
    "torch.compile has compiled {} more graph{} in the loop, on rank {}: a replacement compiles "
    "what it meets itself, and may compute other bits with it. Keep shapes as they are, or use "
    "dynamic=True or False"
)

_state = {"kept out": False}


def before_optimizer_steps(call: Callable[..., None]) -> None:
    """Call ``call`` before each step of any optimizer, outside of compiled graphs."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ANN401
        call(optimizer, args, kwargs)

    # As torch.compiler.disable does, which would import dynamo.
    for name, value in (("", True), ("_msg", REFUSAL), ("_recursive", True)):
        setattr(hook, f"_torchdynamo_disable{name}", value)
    register_optimizer_step_pre_hook(hook)


def keep_out_of_graphs() -> None:
    """Let dynamo, if it is there by now, compile nothing of this package."""
    dynamo = sys.modules.get(_DYNAMO)
    if dynamo is None or _state["kept out"]:
        return
    _state["kept out"] = True
    from torch._dynamo import trace_rules

    trace_rules.add(_PACKAGE)


class CompiledGraphs:
    """How many graphs this process has compiled, step by step."""

    def __init__(self) -> None:
        self._before: int | None = None

    def count_new(self) -> int:
        """Graphs compiled since this was asked last; 0 the first time."""
        dynamo = sys.modules.get(_DYNAMO)
        now = 0
        if dynamo is not None:
            from torch._dynamo.utils import counters

            now = counters["stats"]["unique_graphs"]
        before, self._before = self._before, now
        return 0 if before is None else max(0, now - before)


def anew(graphs: int, rank: int) -> str:
    """What to say of ``graphs`` that were compiled in the loop."""
    return ANEW.format(graphs, "s" * (graphs > 1), rank)
