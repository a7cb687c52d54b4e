"""The store in which the ranks of a generation meet, as torch's groups want it.

It is kept by an agent, and reached through this process's own: there is no port to which another
user of the host could connect.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from fabric_train.messages.keys import KeyAnswer, KeyRequest
from fabric_train.messages.link import AgentLink, AgentLostError
from fabric_train.messages.process import Assignment

_kept: dict[
    tuple[int, str], AgentStore
] = {}  # torch keeps the half of a store that is not Python's


class AgentStore(dist.Store):
    """The store that the agent on ``host`` keeps. Raises ``RuntimeError`` where it gives none."""

    def __init__(self, link: AgentLink, host: str, timeout_s: float) -> None:
        super().__init__()
        self._link = link
        self._host = host
        self._timeout_s = timeout_s

    # What torch calls, from any thread. Names and arguments are those of Store.

    def set(self, key: str, value: str | bytes) -> None:
        """Set ``key``."""
        self._ask("set", [key], body=value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """The value of ``key``, when it is there."""
        return self._ask("get", [key], timeout_s=self._timeout_s).body

    def add(self, key: str, amount: int) -> int:
        """Count up; returns the sum."""
        return self._ask("add", [key], amount=amount).count

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        return self._ask("check", keys).count > 0

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        """Return when all are there."""
        seconds = timeout[0].total_seconds() if timeout else self._timeout_s
        self._ask("wait", keys, timeout_s=seconds)

    def set_timeout(self, timeout: timedelta) -> None:
        """How long `get` and `wait` do, where nothing else is said."""
        self._timeout_s = timeout.total_seconds()

    def _ask(self, call: str, keys: list[str], **more: Any) -> KeyAnswer:  # noqa: ANN401
        request = KeyRequest(self._link.new_question(), self._host, call, list(keys), **more)
        try:
            answer = self._link.call(request)
        except AgentLostError as error:
            raise RuntimeError(str(error)) from None
        if answer.problem:
            raise RuntimeError(answer.problem)
        return answer


def generation_store(link: AgentLink, assignment: Assignment, timeout_s: float) -> dist.Store:
    """The part of the store of ``assignment`` that is its generation's alone."""
    which = id(link), assignment.store
    if which not in _kept:
        _kept[which] = AgentStore(link, assignment.store, timeout_s)
    return dist.PrefixStore(assignment.prefix or f"g{assignment.generation}", _kept[which])
