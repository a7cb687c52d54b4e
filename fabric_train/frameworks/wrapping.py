"""Methods of one object are replaced by ours, which get the former ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def wrap(owner: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Each of ``methods`` is called in place of that of ``owner``, which is its first argument."""
    for name, ours in methods.items():
        setattr(owner, name, _wrapped(getattr(owner, name), ours))


def _wrapped(theirs: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        return ours(theirs, *args, **named)

    return call
