"""Which script this process runs without a line of ours in it; set by ``transparent``."""

from __future__ import annotations

from fabric_train.rules.loop import RuleError

script = ""
"""Its path; empty: a script that joins its job itself."""


def refuse_second_join() -> None:
    """Raises ``RuleError`` in a script that runs by ``transparent``: it has joined already."""
    if script:
        raise RuleError(f"{script} runs by --transparent and joins its job itself: do one of both")
