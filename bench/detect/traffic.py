"""Probes of one flow in virtual time: what was sent, lost and heard, as a prober sees it. Pure.

The rules are those of the prober (``prober/src/core/path.cpp``, ``window.h``): a miss for each
single packet that was due and is late, when the prober itself ran; a sequence absent eight behind
the highest is lost. Times are seconds, arrays are per packet or per moment asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Spans = Sequence[tuple[float, float]]

SOCKET_S = 0.6
"""What a socket holds of a link's packets while nobody reads: 250 of about 400 a second."""
KNOWN_LOST = 8
BITS = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """What the receiver knows at each of the moments asked for."""

    last: Floats
    """When it heard last; negative: never."""
    sent_at: Floats
    """When that packet was sent."""
    received: Ints
    lost: Ints
    highest: Ints
    """Sequence, from 0; −1: none."""
    bitmap: Ints


@dataclass(frozen=True, slots=True)
class FlowLog:
    """One direction between two ports."""

    sent: Floats
    heard: NDArray[np.bool_]
    at: Floats
    """When the receiver's prober processed it; inf: never."""
    order: Ints
    """Packets heard, in order of processing."""
    highest: Ints
    """Highest sequence after each of these."""
    total: Ints
    """Packets heard up to each sequence."""

    @classmethod
    def make(cls, sent: Floats, heard: NDArray[np.bool_], at: Floats) -> FlowLog:
        """Sort things out."""
        order = np.flatnonzero(heard)
        order = order[np.argsort(at[order], kind="stable")]
        highest = np.maximum.accumulate(order) if len(order) else order
        return cls(sent, heard, at, order, highest, np.cumsum(heard))

    def seen(self, moments: Floats) -> Seen:
        """At each moment."""
        done = self.at[self.order]
        count = np.searchsorted(done, moments, side="right")
        some = count > 0
        index = np.maximum(count - 1, 0)
        if not len(self.order):
            none = np.zeros(len(moments), dtype=np.int64)
            never = np.full(len(moments), -1.0)
            return Seen(never, never, none, none, none - 1, none)
        highest = np.where(some, self.highest[index], -1)
        first = int(self.order[0])
        limit = highest - KNOWN_LOST
        known = limit >= first
        at_limit = np.maximum(limit, 0)
        span = limit - first + 1
        lost = np.where(known, span - self.total[at_limit] + (self.total[first] - 1), 0)
        bitmap = np.zeros(len(moments), dtype=np.int64)
        for bit in range(BITS):
            at = highest - bit
            there = (at >= 0) & some
            at = np.maximum(at, 0)
            bitmap |= (there & self.heard[at] & (self.at[at] <= moments)).astype(np.int64) << bit
        return Seen(
            np.where(some, done[index], -1.0),
            np.where(some, self.sent[self.order[index]], -1.0),
            count.astype(np.int64),
            np.maximum(lost, 0),
            highest,
            bitmap,
        )


def within(spans: Spans, since: Floats, until: Floats) -> Floats:
    """How much of [since, until] lies in the spans."""
    total = np.zeros(len(until))
    for begin, end in spans:
        total += np.maximum(0.0, np.minimum(end, until) - np.maximum(begin, since))
    return total


def awake(spans: Spans, at: Floats) -> Floats:
    """How long by then no span had ended."""
    ends = np.array(sorted([0.0, *(end for _, end in spans)]))
    since: Floats = ends[np.maximum(np.searchsorted(ends, at, side="right") - 1, 0)]
    return np.maximum(0.0, at - since)


def lateness(interval: float, link_interval: float) -> float:
    """How late a packet may be before it is missed."""
    return min(interval / 2, link_interval / 2 + interval / 16)


def due_between(since: Floats, until: Floats, phase: float, interval: float) -> Ints:
    """How many packets of a steady sender were due in (since, until], at phase + n × interval."""
    number: Floats = np.floor((until - phase) / interval) - np.floor((since - phase) / interval)
    return np.maximum(number, 0).astype(np.int64)


def in_spans(times: Floats, spans: Spans) -> NDArray[np.bool_]:
    """Which times lie in a span."""
    inside = np.zeros(len(times), dtype=bool)
    for begin, end in spans:
        inside |= (times >= begin) & (times < end)
    return inside


def process(arrival: Floats, heard: NDArray[np.bool_], stalls: Spans) -> Floats:
    """When packets are processed by a prober that stalls; what overflows is marked as not heard."""
    at = np.where(heard, arrival, np.inf)
    for begin, end in stalls:
        waiting = (arrival >= begin) & (arrival < end)
        if not waiting.any():
            continue
        over = waiting & (arrival - begin > SOCKET_S)
        heard[over] = False
        at[waiting & heard] = end
        at[over] = np.inf
    return at
