"""What a generation's key-value store is asked: by a process of its agent, and between agents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeyRequest:
    """Ask the store that the agent on ``host`` keeps; ``question`` is a number not used before.

    ``call`` is ``set`` (the one key to ``body``), ``get`` (its value, once it is there), ``wait``
    (for all ``keys``), ``check`` (whether all are there) or ``add`` (``amount`` to a number).
    """

    question: int
    host: str
    call: str
    keys: list[str]
    amount: int = 0
    timeout_s: float = 0.0
    body: bytes = b""


@dataclass(frozen=True)
class KeyAnswer:
    """Answer to ``KeyRequest``: a value or a number; or ``problem``, for people."""

    question: int
    problem: str = ""
    count: int = 0
    body: bytes = b""
