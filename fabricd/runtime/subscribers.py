"""A list of callbacks; its owner calls them in the order in which they subscribed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Subscribers(Generic[P]):
    """The callbacks of one kind of news. Only the owner of the list calls `tell`."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[P, None]] = []

    def add(self, callback: Callable[P, None]) -> Callable[[], None]:
        """Subscribe ``callback``; returns a function that unsubscribes it, to be called once."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all subscribers."""
        for callback in tuple(self._callbacks):
            callback(*args, **kwargs)
