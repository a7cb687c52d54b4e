"""One link loses 1 % or 0.1 % of its packets one way: how long until that is said, and of which?"""

from __future__ import annotations

from bench.report import Row


def loss(*, quick: bool) -> list[Row]:
    """Not yet."""
    raise RuntimeError(f"not measured yet (quick: {quick})")
