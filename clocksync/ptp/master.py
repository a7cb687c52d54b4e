"""One configured master: what it has granted, who it says it is, and what time it has. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from clocksync.pair.model import SECOND
from clocksync.ptp.contract import Contract, Terms
from clocksync.ptp.dataset import qualified
from clocksync.ptp.estimator import MasterEstimator, Rules
from clocksync.ptp.messages import (
    ANY_PORT,
    Acknowledge,
    Announce,
    Cancel,
    DelayReq,
    DelayResp,
    Flag,
    FollowUp,
    Grant,
    Header,
    Message,
    PortIdentity,
    Signaling,
    Sync,
    Tlv,
    Type,
)

TERMS: Final = (
    Terms(Type.ANNOUNCE, interval=0, slowest=1, missing=3),
    Terms(Type.SYNC, interval=-3, slowest=0),
    Terms(Type.DELAY_RESP, interval=-3, slowest=0),
)
"""Eight exchanges a second; an announceReceiptTimeout of 3 (9.2.6.12)."""
QUALIFIED: Final = 2
"""FOREIGN_MASTER_THRESHOLD: Announces after which a master counts (9.3.2.4.5)."""
PENDING_NS: Final = 2 * SECOND
"""Halves of an exchange wait so long for the other one."""
MOST_PENDING: Final = 64
FIT_NS: Final = SECOND // 2


class Outgoing(NamedTuple):
    """A message to a master."""

    master: int
    """Index."""
    message: Message


@dataclass(slots=True)
class _Exchange:
    """What has come of a Sync, or a Delay_Req."""

    at_ns: int
    ours_ns: int | None = None
    theirs_ns: int | None = None
    correction_ns: float = 0.0


@dataclass(slots=True)
class Master:
    """Give it what came; ask it what to send."""

    index: int
    us: PortIdentity
    domain: int
    next_sequence: Callable[[], int]
    rules: Rules = field(default_factory=Rules)
    said: Announce | None = None
    """Its last Announce, while it is heard."""
    port: PortIdentity | None = None
    estimator: MasterEstimator = field(init=False)
    contracts: dict[Type, Contract] = field(init=False)
    refused: Counter[str] = field(default_factory=Counter)
    """Messages that were not for us, by reason."""
    lost: int = 0
    """Times that it fell silent."""
    _announced: int = 0
    _cancelled: set[Type] = field(default_factory=set)
    """Of which it is still to hear that we know."""
    _syncs: dict[int, _Exchange] = field(default_factory=dict)
    _delays: dict[int, _Exchange] = field(default_factory=dict)
    _delay_due_ns: int = 0
    _fit_ns: int = 0

    def __post_init__(self) -> None:
        self.estimator = MasterEstimator(self.rules)
        self.contracts = {terms.type: Contract(terms) for terms in TERMS}

    # -- what came ----------------------------------------------------------------------------

    def hear(self, message: Message, stamp_ns: int | None, now_ns: int) -> None:
        """A message came from its address.

        Args:
            message: decoded.
            stamp_ns: when a Sync came, by our clock; None: unknown, and it is of no use.
            now_ns: our clock.
        """
        if reason := self._foreign(message):
            self.refused[reason] += 1
            return
        match message:
            case Announce():
                self._announce(message, now_ns)
            case Signaling():
                self._signaling(message, now_ns)
            case Sync():
                self._sync(message, stamp_ns, now_ns)
            case FollowUp():
                self._follow_up(message, now_ns)
            case DelayResp():
                self._delay_resp(message, now_ns)
            case _:
                self.refused["not of a master"] += 1

    def sent(self, sequence: int, stamp_ns: int) -> None:
        """A Delay_Req left, by our clock."""
        exchange = self._delays.get(sequence)
        if exchange is not None:
            exchange.ours_ns = stamp_ns
            self._delayed(sequence, exchange)

    def _foreign(self, message: Message) -> str:
        head = message.header
        if head.domain != self.domain or head.sdo:
            return "domain"
        if isinstance(message, Signaling):
            meant = message.target
            if meant.clock not in (self.us.clock, ANY_PORT.clock):
                return "target"
        elif not isinstance(message, Announce) and head.source != self.port:
            return "source"
        return ""

    def _announce(self, message: Announce, now_ns: int) -> None:
        if not qualified(message, self.us.clock):
            self.refused["not qualified"] += 1
            return
        if self.port != message.header.source:
            # Another device at this address.
            self.port = message.header.source
            self._forget()
        elif self.said is not None and _whose(self.said) != _whose(message):
            # The port gives another time. The line is still that of before, and would be said
            # with the new grandmaster's timescale and accuracy until its step is seen.
            self._restart()
        self._announced += 1
        self.said = message
        self.contracts[Type.ANNOUNCE].heard(now_ns)

    def _signaling(self, message: Signaling, now_ns: int) -> None:
        for tlv in message.tlvs:
            contract = self.contracts.get(Type(tlv.type)) if tlv.type in set(Type) else None
            if contract is None:
                continue
            match tlv:
                case Grant():
                    contract.answer(tlv, now_ns)
                case Cancel():
                    contract.cancelled(now_ns)
                    self._cancelled.add(Type(tlv.type))

    def _sync(self, message: Sync, stamp_ns: int | None, now_ns: int) -> None:
        self.contracts[Type.SYNC].heard(now_ns)
        exchange = _pending(self._syncs, message.header.sequence, now_ns)
        exchange.ours_ns = stamp_ns
        exchange.correction_ns += message.header.correction_ns
        if not message.header.flags & Flag.TWO_STEP:
            exchange.theirs_ns = message.origin_ns
        self._synced(message.header.sequence, exchange)

    def _follow_up(self, message: FollowUp, now_ns: int) -> None:
        exchange = _pending(self._syncs, message.header.sequence, now_ns)
        exchange.theirs_ns = message.origin_ns
        exchange.correction_ns += message.header.correction_ns
        self._synced(message.header.sequence, exchange)

    def _synced(self, sequence: int, exchange: _Exchange) -> None:
        """11.3.2: t1 and the corrections of Sync and Follow_Up."""
        if exchange.ours_ns is not None and exchange.theirs_ns is not None:
            del self._syncs[sequence]
            sent = exchange.theirs_ns + round(exchange.correction_ns)
            self.estimator.sync(sent, exchange.ours_ns)

    def _delay_resp(self, message: DelayResp, now_ns: int) -> None:
        if message.requester != self.us:
            self.refused["target"] += 1
            return
        exchange = self._delays.get(message.header.sequence)
        if exchange is None:
            self.refused["not asked for"] += 1
            return
        self.contracts[Type.DELAY_RESP].heard(now_ns)
        exchange.theirs_ns = message.received_ns
        exchange.correction_ns = message.header.correction_ns
        self._delayed(message.header.sequence, exchange)

    def _delayed(self, sequence: int, exchange: _Exchange) -> None:
        """11.3.2: t4 less the correction of Delay_Resp, which has that of Delay_Req in it."""
        if exchange.ours_ns is not None and exchange.theirs_ns is not None:
            del self._delays[sequence]
            came = exchange.theirs_ns - round(exchange.correction_ns)
            self.estimator.delay(exchange.ours_ns, came)

    # -- a step -------------------------------------------------------------------------------

    def step(self, now_ns: int) -> list[Outgoing]:
        """What to send now."""
        for table in (self._syncs, self._delays):
            for sequence, exchange in list(table.items()):
                if now_ns - exchange.at_ns > PENDING_NS:
                    del table[sequence]
        announce = self.contracts[Type.ANNOUNCE]
        was = announce.granted
        asked = [announce.step(now_ns)]
        if was and not announce.granted:
            # A master that is silent, or knows us no more, has forgotten the other grants as well.
            self.lost += self.said is not None
            self.said, self._announced = None, 0
            for contract in self.contracts.values():
                if contract is not announce:
                    contract.void()
        if self.said is not None and announce.granted:
            asked += [self.contracts[kind].step(now_ns) for kind in (Type.SYNC, Type.DELAY_RESP)]
        tlvs: list[Tlv] = [request for request in asked if request is not None]
        tlvs += [Acknowledge(kind) for kind in sorted(self._cancelled)]
        self._cancelled.clear()
        out = [self._signal(tlvs)] if tlvs else []
        if (request := self._delay_req(now_ns)) is not None:
            out.append(request)
        if now_ns >= self._fit_ns:
            self._fit_ns = now_ns + FIT_NS
            self.estimator.estimate(now_ns)
        return out

    def reset(self) -> None:
        """Our clock is another: what was timed by it is void, and so is when a grant ends."""
        self._restart()
        self.said, self._announced = None, 0
        self._delay_due_ns = self._fit_ns = 0
        for contract in self.contracts.values():
            contract.void()

    def cancel_unicast_transmission(self) -> list[Outgoing]:
        """Cancels what was granted (16.1.4.3)."""
        held = [Cancel(kind) for kind, contract in self.contracts.items() if contract.granted]
        for contract in self.contracts.values():
            contract.void()
        return [self._signal(list(held))] if held else []

    @property
    def alive(self) -> bool:
        """Whether it counts as a master now (9.3.2.4)."""
        granted = self.contracts[Type.ANNOUNCE].granted
        return granted and self.said is not None and self._announced >= QUALIFIED

    @property
    def timing(self) -> bool:
        """Whether its Syncs come, and answers to our Delay_Reqs."""
        return all(self.contracts[kind].granted for kind in (Type.SYNC, Type.DELAY_RESP))

    def _delay_req(self, now_ns: int) -> Outgoing | None:
        contract = self.contracts[Type.DELAY_RESP]
        if not contract.granted or now_ns < self._delay_due_ns:
            return None
        self._delay_due_ns = max(self._delay_due_ns + contract.period_ns, now_ns)
        sequence = self.next_sequence()
        _pending(self._delays, sequence, now_ns)
        return Outgoing(self.index, DelayReq(self._header(sequence)))

    def _signal(self, tlvs: list[Tlv]) -> Outgoing:
        """16.1.1: to whoever is at that address, until it has said who it is."""
        target = self.port or ANY_PORT
        return Outgoing(
            self.index, Signaling(self._header(self.next_sequence()), target, tuple(tlvs))
        )

    def _header(self, sequence: int) -> Header:
        return Header(self.us, sequence, self.domain, Flag.UNICAST)

    def _restart(self) -> None:
        """Nothing that was timed so far is of the time that it gives now."""
        self.estimator.reset()
        self._syncs.clear()
        self._delays.clear()

    def _forget(self) -> None:
        self._restart()
        self._announced = 0
        for kind in (Type.SYNC, Type.DELAY_RESP):
            self.contracts[kind].void()


def _whose(said: Announce) -> tuple[bytes, bool]:
    """Whose time a port gives: another grandmaster's, or another timescale's, is another time."""
    return said.grandmaster, bool(said.header.flags & Flag.PTP_TIMESCALE)


def _pending(table: dict[int, _Exchange], sequence: int, now_ns: int) -> _Exchange:
    while len(table) >= MOST_PENDING and sequence not in table:
        del table[next(iter(table))]
    return table.setdefault(sequence, _Exchange(now_ns))
