"""PTP masters and a unicast client in virtual time."""

import heapq
import random

from clocksync.ptp.client import Client
from clocksync.ptp.messages import (
    Announce,
    Cancel,
    DelayReq,
    DelayResp,
    Flag,
    FollowUp,
    Grant,
    Header,
    PortIdentity,
    Request,
    Signaling,
    Sync,
    Type,
    encode,
)

SECOND = 10**9
US = b"\x02fab\0\0\0\7"
TAI = 1_800_000_000 * SECOND
STEP = SECOND // 10
FLAGS = Flag.PTP_TIMESCALE | Flag.UTC_OFFSET_VALID | Flag.TIME_TRACEABLE


class Master:
    """The other side of 16.1: grants, announces, Syncs and answers by its own clock."""

    def __init__(self, world, number, *, rate=0.0, ahead_ns=0, **said):
        self.world, self.number = world, number
        self.port = PortIdentity(bytes([number + 1]) * 8, 1)
        self.rate, self.ahead_ns = rate, ahead_ns
        self.up, self.deny, self.one_step, self.flags = True, set(), False, FLAGS
        self.said = {
            "utc_offset_s": 37, "priority1": 128, "clock_class": 6, "accuracy": 0xFE,
            "variance": 0, "priority2": 128, "grandmaster": self.port.clock, "steps_removed": 0,
        } | said  # fmt: skip
        self.until, self.periods, self.due, self.seq = {}, {}, {}, 0
        self.requests = []

    def tai(self, now):
        return TAI + self.ahead_ns + now + round(self.rate * now)

    def restart(self):
        self.up, self.until = True, {}

    def head(self, flags=0, sequence=None, correction=0.0):
        if sequence is None:
            self.seq = (self.seq + 1) & 0xFFFF
            sequence = self.seq
        return Header(self.port, sequence, 0, Flag.UNICAST | flags, correction)

    def hear(self, message, now):
        if not self.up:
            return
        match message:
            case Signaling():
                for tlv in message.tlvs:
                    if isinstance(tlv, Request):
                        self.requests.append((now, tlv))
                        denied = tlv.type in self.deny
                        duration = 0 if denied else tlv.duration_s
                        if not denied:
                            self.until[tlv.type] = now + duration * SECOND
                            self.periods[tlv.type] = round(2.0**tlv.interval * SECOND)
                            self.due.setdefault(tlv.type, now)
                        grant = Grant(tlv.type, tlv.interval, duration)
                        self.tell(Signaling(self.head(), message.header.source, (grant,)), now)
                    elif isinstance(tlv, Cancel):
                        self.until.pop(tlv.type, None)
            case DelayReq() if self.until.get(Type.DELAY_RESP, 0) > now:
                residence = 7.5
                self.tell(
                    DelayResp(
                        self.head(sequence=message.header.sequence, correction=residence),
                        self.tai(now) + 7, message.header.source,
                    ),
                    now,
                )  # fmt: skip

    def run(self, now):
        for kind in (Type.ANNOUNCE, Type.SYNC):
            if not self.up or self.until.get(kind, 0) <= now or self.due[kind] > now:
                continue
            self.due[kind] = now + self.periods[kind]
            if kind is Type.ANNOUNCE:
                self.tell(Announce(self.head(self.flags), **self.said), now)
            elif self.one_step:
                self.tell(Sync(self.head(correction=0.0), self.tai(now)), now)
            else:
                head = self.head(Flag.TWO_STEP, correction=4.0)
                self.tell(Sync(head, 0), now)
                later = self.head(sequence=head.sequence, correction=6.0)
                self.tell(FollowUp(later, self.tai(now) - 10), now)

    def tell(self, message, now):
        self.world.to_client(self.number, message, now)


class World:
    """Client and masters; delays in ns, by the seed."""

    def __init__(self, *masters, seed=1, least=20_000, jitter=5_000, more_back=0, loss=0.0):
        self.rng = random.Random(seed)
        self.masters = [Master(self, n, **given) for n, given in enumerate(masters)]
        self.client = Client(US, len(masters))
        self.now, self.count = 10**12, 0
        self.least, self.jitter, self.more_back, self.loss = least, jitter, more_back, loss
        self.shuffle = self.shift = 0
        """``shift``: of the client's clock, which is not that of the world then."""
        self.queue = []
        self.step_due = self.now

    def delay(self):
        return self.least + round(self.rng.expovariate(1 / max(self.jitter, 1)))

    def at(self, when, call):
        self.count += 1
        heapq.heappush(self.queue, (when, self.count, call))

    def to_client(self, number, message, now):
        if self.rng.random() < self.loss:
            return
        came = now + self.delay()
        stamp = came + self.shift if isinstance(message, Sync) else None
        late = self.rng.randint(0, self.shuffle) if self.shuffle else 0
        self.at(
            came + late,
            lambda: self.client.receive(number, encode(message), stamp, self.now + self.shift),
        )

    def to_master(self, number, message):
        if isinstance(message, DelayReq):
            self.client.sent(message.header.sequence, self.now + self.shift)
        if self.rng.random() < self.loss:
            return
        when = self.now + self.delay() + self.more_back
        self.at(when, lambda: self.masters[number].hear(message, self.now))

    def run(self, seconds, look=None):
        end = self.now + round(seconds * SECOND)
        while self.now < end:
            due = min(self.step_due, self.queue[0][0] if self.queue else end, end)
            self.now = max(self.now, due)
            while self.queue and self.queue[0][0] <= self.now:
                heapq.heappop(self.queue)[2]()
            if self.now >= self.step_due:
                # Masters tick ten times finer than the client, in its steps: good enough.
                for master in self.masters:
                    for part in range(2):
                        when = self.now + part * STEP // 2
                        self.at(when, lambda m=master: m.run(self.now))
                for number, message in self.client.step(self.now + self.shift):
                    self.to_master(number, message)
                self.step_due += STEP
                if look:
                    look()

    def error(self, number=0):
        """Of the client's time, and its bound."""
        found = self.client.time(self.now + self.shift)
        return found.time.ns + found.time.part - self.masters[number].tai(self.now), found.bound_ns
