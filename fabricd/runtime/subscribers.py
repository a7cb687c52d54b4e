"""Callbacks that are told of something, in the order in which they subscribed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Subscribers(Generic[P]):
    """Those who want to be told. The owner of the news tells them; nobody else does."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[P, None]] = []

    def add(self, callback: Callable[P, None]) -> Callable[[], None]:
        """Tell ``callback`` from now on; returns what ends that. It may be called once."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all of them."""
        for callback in tuple(self._callbacks):
            callback(*args, **kwargs)
