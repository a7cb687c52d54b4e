"""What a master has granted us of one kind of message, and when to ask again (16.1). Pure.

=========  =======================================================================================
IDLE       not asked; asks at once
ASKED      waiting for the answer; asks again after 1, 2, 4 … 16 s
GRANTED    messages are due; asks again before the grant runs out, and when they stay away
DENIED     asks again after a while, for half as many messages if there may be fewer
=========  =======================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from clocksync.pair.model import SECOND
from clocksync.ptp.messages import Grant, Request, Type


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked for."""

    type: Type
    interval: int
    """logInterMessagePeriod at first,"""
    slowest: int
    """and at the least."""
    duration_s: int = 60
    """16.1.4.1.5 has 300 s as the default; a client that vanished is served for so long."""
    missing: int = 4
    """Messages that stay away until the grant counts for nothing: a master that was started anew
    knows nothing of it."""


class Standing(Enum):
    """Of a contract."""

    IDLE = "idle"
    ASKED = "asked"
    GRANTED = "granted"
    DENIED = "denied"


FIRST_ASK_NS: Final = SECOND
LAST_ASK_NS: Final = 16 * SECOND
DENIED_NS: Final = 10 * SECOND
LEAST_WAIT_NS: Final = 3 * SECOND
"""Messages that are late by less are late and no more."""
RENEW: Final = 0.5
"""Of a grant is over when it is asked for again: some asks may be lost."""
RENEW_ASK_NS: Final = 2 * SECOND
FASTEST, SLOWEST = -7, 4
"""logInterMessagePeriod of a grant that makes sense."""


@dataclass(slots=True)
class Contract:
    """With one master, on one kind of message. Give it what came, ask it what to send."""

    terms: Terms
    standing: Standing = Standing.IDLE
    denied: int = 0
    """Requests that were denied."""
    timeouts: int = 0
    """Times that messages stayed away which had been granted."""
    interval: int = field(init=False)
    """logInterMessagePeriod: asked for, or granted."""
    _ask_ns: int = 0
    _backoff_ns: int = FIRST_ASK_NS
    _granted_ns: int = 0
    _until_ns: int = 0
    _heard_ns: int = 0

    def __post_init__(self) -> None:
        self.interval = self.terms.interval

    @property
    def granted(self) -> bool:
        """Whether messages are due."""
        return self.standing is Standing.GRANTED

    @property
    def period_ns(self) -> int:
        """Between two messages."""
        return round(SECOND * 2.0**self.interval)

    def step(self, now_ns: int) -> Request | None:
        """What to ask for now."""
        if self.granted:
            patience = max(LEAST_WAIT_NS, self.terms.missing * self.period_ns)
            if now_ns - self._heard_ns > patience or now_ns >= self._until_ns:
                self.timeouts += now_ns - self._heard_ns > patience
                self.void()
            elif now_ns < self._granted_ns + RENEW * (self._until_ns - self._granted_ns):
                return None
        if now_ns < self._ask_ns:
            return None
        if self.granted:
            self._ask_ns = now_ns + RENEW_ASK_NS
        else:
            self.standing = Standing.ASKED
            self._ask_ns = now_ns + self._backoff_ns
            self._backoff_ns = min(2 * self._backoff_ns, LAST_ASK_NS)
        return Request(self.terms.type, self.interval, self.terms.duration_s)

    def answer(self, grant: Grant, now_ns: int) -> None:
        """A grant came, or a denial. One that was not asked for is ignored."""
        if self.standing is Standing.IDLE or self.standing is Standing.DENIED:
            return
        if not FASTEST <= grant.interval <= SLOWEST:
            return
        if grant.duration_s == 0:
            self.denied += 1
            if self.granted:
                return  # not renewed: it holds until it runs out
            self.standing = Standing.DENIED
            # Fewer messages may be what the master has left (16.1.4.2.4).
            self.interval = min(self.interval + 1, self.terms.slowest)
            self._ask_ns = now_ns + DENIED_NS
            return
        if not self.granted:
            self._heard_ns = now_ns
        self.standing, self.interval = Standing.GRANTED, grant.interval
        self._granted_ns = self._ask_ns = now_ns
        self._until_ns = now_ns + grant.duration_s * SECOND
        self._backoff_ns = FIRST_ASK_NS

    def heard(self, now_ns: int) -> None:
        """A message of this kind came."""
        self._heard_ns = now_ns

    def void(self) -> None:
        """Whatever was granted is no more; asks anew."""
        self.standing, self.interval, self._ask_ns = Standing.IDLE, self.terms.interval, 0

    def cancelled(self, now_ns: int) -> None:
        """The master takes back its grant (16.1.4.3)."""
        self.standing, self._ask_ns = Standing.DENIED, now_ns + DENIED_NS
