"""From fabric time to TAI, on every host. Pure.

A host with a PTP master (`clocksync.ptp`) has TAI as a line over its own clock, and so knows how
far TAI is ahead of fabric time. It says so in two messages (TRACE, ORIGIN), which all hosts pass
on. Nobody moves fabric time for it: that goes on at its own rate, and TAI is a line over it.

*Bound*. The host with the master has fabric time within its bound, and the others within theirs; so
what others make of its messages is off by at most the master's bound and both of these. A message
holds for the fabric time of one reference (`clocksync.mesh.messages.under`): where another gives
the time, what is known goes on as a line over the own clock until messages of the new one come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from clocksync.mesh.codec import encode
from clocksync.mesh.messages import ClockMessage, Origin, Trace
from clocksync.page.clock_page import ClockError, Line, State
from clocksync.page.tai_page import NO_TAI, Source, TaiLine
from clocksync.pair.linear import Linear, split
from clocksync.pair.model import SECOND
from clocksync.ptp.client import MasterTime


class Fabric(NamedTuple):
    """Fabric time as a host has it at one moment."""

    time: Linear
    """Over its clock, from that moment on."""
    bound_ns: float
    drift: float
    tag: int
    under: int
    """Whose it is (`clocksync.mesh.messages.under`)."""


@dataclass(frozen=True, slots=True)
class TraceRules:
    """Parameters of a keeper."""

    message_ns: int = 3 * SECOND
    """A message so old is of a host that may be gone: any other is better."""
    end_ns: int = 3600 * SECOND
    """And is nothing after so long."""
    fresh_ns: int = SECOND
    """Of the page: without another line it is holdover."""
    wander: float = 1e-8 / SECOND
    """Most by which two clocks' rates part within a nanosecond
    (`clocksync.mesh.host.HostRules`)."""


class _Heard(NamedTuple):
    trace: Trace
    origin: Origin | None


_NONE: Final = Source()
_ROUNDED_NS: Final = 2.0
"""Of both hosts' fabric times the part of a nanosecond is left out."""


class TaiKeeper:
    """Of one host. Give it what came, ask it ten times a second."""

    def __init__(
        self, host: int, last: TaiLine = NO_TAI, rules: TraceRules | None = None, epoch: int = 0
    ) -> None:
        """A keeper that goes on with what an earlier one said last.

        Args:
            host: our id.
            last: on the page; its line is over our clock.
            rules: parameters.
            epoch: epochs of the page count from here on.
        """
        self.id, self.rules = host, rules or TraceRules()
        self.said = last
        """As published last."""
        self.steps = 0
        """Times that TAI turned out to be another than it was within both bounds."""
        self._epoch = max(epoch, last.line.epoch + 1)
        self._heard: dict[int, _Heard] = {}
        self._came: list[Trace | Origin] = []
        self._messages: list[ClockMessage] = []

    def forget(self) -> None:
        """Our own clock is another: nothing over it is true."""
        self.said = NO_TAI

    def hear(self, message: Trace | Origin) -> None:
        """A neighbour's message, its own or passed on.

        Also what we said ourselves: should our clock begin anew while no master is there, the
        neighbours still know what we knew. It grows old as anybody's messages do.
        """
        self._came.append(message)  # until `step` knows what time it is

    def _take(self, message: Trace | Origin, fabric: Fabric) -> None:
        known = self._heard.get(message.id)
        held = known.trace if known is not None else None
        trace = message if isinstance(message, Trace) else held
        if trace is None or self._void(message, trace, fabric):
            return
        if isinstance(message, Trace):
            if known is None or _prefers(message, known.trace, fabric.under):
                self._heard[message.id] = _Heard(message, known.origin if known else None)
        elif known is not None and (
            known.origin is None or known.origin.fabric_ns < message.fabric_ns
        ):
            self._heard[message.id] = known._replace(origin=message)

    def step(self, now_ns: int, fabric: Fabric | None, own: MasterTime | None) -> TaiLine:
        """What to publish as of now.

        Args:
            now_ns: our clock.
            fabric: fabric time; None: there is none.
            own: of a host with a master.
        """
        self._messages = []
        came, self._came = self._came, []
        if own is not None and not own.grandmaster.ptp_timescale:
            own = None  # its epoch is its own affair
        found = [] if own is None else [(_rank(_source(own), self.id, own.tracking), self.id)]
        if fabric is not None:
            self._weed(fabric)
            for message in came:
                self._take(message, fabric)
            found += [
                (_rank(_named(heard.origin), host, self._fresh(heard, fabric)), host)
                for host, heard in self._heard.items()
                if heard.trace.under == fabric.under and (own is None or host != self.id)
            ]  # fmt: skip
        if not found:
            return self._go_on(now_ns)
        whose = min(found)[1]
        if whose == self.id and own is not None:
            # It is as of a moment before: reading packets takes its time.
            late = abs(now_ns - own.time.at_ns)
            own = own._replace(
                time=own.time.moved(now_ns), bound_ns=own.bound_ns + own.drift * late
            )
            self._say(fabric, own)
            state = State.LOCKED if own.tracking else State.HOLDOVER
            return self._publish(now_ns, own.time, own.bound_ns, own.drift, state, self.id,
                                 _source(own))  # fmt: skip
        assert fabric is not None
        trace, origin = heard = self._heard[whose]
        self._messages = [trace] if origin is None else [trace, origin]
        age = fabric.time.ns - trace.fabric_ns
        ns, part = split(fabric.time.part + trace.slope * age, fabric.time.ns + trace.ahead_ns)
        far = abs(age)
        bound = trace.bound_ns + (trace.drift + self.rules.wander * far / 2) * far
        drift = trace.drift + self.rules.wander * far + fabric.drift
        slope = (1 + fabric.time.slope) * (1 + trace.slope) - 1
        fresh = self._fresh(heard, fabric)
        return self._publish(
            now_ns, Linear(now_ns, ns, part, slope), fabric.bound_ns + bound + 1.0, drift,
            State.LOCKED if fresh else State.HOLDOVER, whose, _named(origin),
        )  # fmt: skip

    def messages(self) -> list[bytes]:
        """What to tell the neighbours, as of the last step."""
        return [encode(message) for message in self._messages]

    def _fresh(self, heard: _Heard, fabric: Fabric) -> bool:
        if heard.origin is not None and not heard.origin.tracking:
            return False
        return fabric.time.ns - heard.trace.fabric_ns < self.rules.message_ns

    def _void(self, message: Trace | Origin, trace: Trace, fabric: Fabric) -> bool:
        """Whether a message is of another mesh, too old, or of the future.

        The last would keep all later ones out. It is one when it was said later than now, by more
        than the two hosts' clocks may be apart. A TRACE's bound has that of its host's fabric time
        in it. Another reference's time is another one: nothing is known of how far that is ahead.
        Whatever a host says of its bound, it keeps later messages out no longer than a message is
        fresh.

        Args:
            message: which.
            trace: itself, or the TRACE that an ORIGIN belongs to.
            fabric: fabric time now.
        """
        most: float = self.rules.message_ns
        if trace.under == fabric.under:
            most = min(most, trace.bound_ns + fabric.bound_ns + _ROUNDED_NS)
        age = fabric.time.ns - message.fabric_ns
        return message.tag != fabric.tag or not -most <= age < self.rules.end_ns

    def _weed(self, fabric: Fabric) -> None:
        for host, (trace, origin) in list(self._heard.items()):
            if self._void(trace, trace, fabric):
                del self._heard[host]
            elif origin is not None and self._void(origin, trace, fabric):
                # Each new TRACE takes it over: it would never grow old by itself.
                self._heard[host] = _Heard(trace, None)

    def _say(self, fabric: Fabric | None, own: MasterTime) -> None:
        if fabric is None:
            return
        time, tai = fabric.time, own.time
        # The part of a nanosecond is left out.
        ahead, slope = tai.ns - time.ns, (1 + tai.slope) / (1 + time.slope) - 1
        self._messages = [
            Trace(fabric.tag, self.id, time.ns, ahead, slope, own.bound_ns + fabric.bound_ns + 2,
                  own.drift + fabric.drift, fabric.under),
            Origin(fabric.tag, self.id, time.ns, own.grandmaster.identity,
                   own.grandmaster.clock_class, own.grandmaster.accuracy,
                   own.grandmaster.steps_removed, own.grandmaster.utc_offset_s,
                   own.grandmaster.traceable, own.grandmaster.leap, own.tracking),
        ]  # fmt: skip

    def _go_on(self, now_ns: int) -> TaiLine:
        """With the line that was."""
        line = self.said.line
        if line.state is not State.UNSYNCED:
            try:
                line.at(now_ns)
                self.said = self.said._replace(line=replace(line, state=State.HOLDOVER))
            except ClockError:
                self.said = NO_TAI
        return self.said

    def _publish(
        self, now_ns: int, tai: Linear, bound_ns: float, drift: float, state: State, host: int,
        source: Source,
    ) -> TaiLine:  # fmt: skip
        before = self.said.line
        epoch = before.epoch
        try:
            was = before.at(now_ns)
            if abs(was.ns - tai.ns) > was.bound_ns + bound_ns + 1:
                self.steps += 1
                epoch = self._next()
        except ClockError:
            epoch = self._next()
        line = Line(
            raw_ns=now_ns, fabric_ns=tai.ns, slope=tai.slope, bound_ns=bound_ns + 1.0, drift=drift,
            wander=self.rules.wander, fresh_ns=self.rules.fresh_ns, end_ns=self.rules.end_ns,
            state=state, reference=host, epoch=epoch,
        )  # fmt: skip
        self.said = TaiLine(line, source)
        return self.said

    def _next(self) -> int:
        self._epoch += 1
        return self._epoch


def _prefers(message: Trace, held: Trace, under: int) -> bool:
    fits = [each.under == under for each in (message, held)]
    return fits[0] if fits[0] != fits[1] else message.fabric_ns > held.fabric_ns


def _rank(source: Source, host: int, fresh: bool) -> tuple[bool, bool, int, int]:
    """The smaller, the better: all hosts come to the same one."""
    return not fresh, not source.traceable, source.clock_class, host


def _named(origin: Origin | None) -> Source:
    if origin is None:
        return _NONE
    return Source(origin.grandmaster, origin.clock_class, origin.accuracy, origin.steps_removed,
                  origin.utc_offset_s, origin.traceable, origin.leap)  # fmt: skip


def _source(own: MasterTime) -> Source:
    whose = own.grandmaster
    return Source(whose.identity, whose.clock_class, whose.accuracy, whose.steps_removed,
                  whose.utc_offset_s, whose.traceable, whose.leap)  # fmt: skip
