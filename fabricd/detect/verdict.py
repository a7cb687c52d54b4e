"""From what the probes say to whose fault it is. Pure.

Rules, in the order in which they are asked:

* Only paths that were heard in the prober's present life are evidence, and only conclusive misses
  (`fabricd.probes.records.MissRecord`) count; the prober never counts inconclusive ones.
* A miss says something about a link or path only if the peer sent that packet, as what it sent
  over other links says (`fabricd.detect.silence`). A peer that is silent everywhere is a host
  event. Likewise a peer's report that it does not hear us counts only while it hears us over
  another link: otherwise it was our own prober that did not send.
* A link is at fault when the last ``misses`` packets that were due on it, from whichever peers, two
  or more among them, are all missing. The peers are staggered by the link interval, so this takes
  ``misses`` of those, however many peers there are. RX (we do not hear) and TX (they do not hear
  us) are judged apart. Misses of two peers make it a suspect, until each is the fault of its own
  path and another peer is well on the link: two ports elsewhere are dead then.
* Otherwise a path that missed ``misses`` in a row is at fault alone, once its peer is known to live
  for one more of its intervals; while the link may still turn out to be the cause, its paths wait.
* What we do not hear is a verdict only when all that had reached this host's kernel is delivered
  (`fabricd.detect.receive_path`); until then it is a suspicion. What peers do not hear of us does
  not wait for that: they judge.
* While the device moves payload in the direction that is called silent (`fabricd.detect.progress`),
  the silence is that of a full queue: neither a verdict nor a suspicion. While the link is looked
  at, the waits of its paths go on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from fabricd.detect.progress import ALONE_NS, ByteProgress
from fabricd.detect.receive_path import ReceivePath
from fabricd.detect.silence import PathView, Rules, Silences
from fabricd.probes.records import Direction

RX, TX = Direction.RX, Direction.TX


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the probes say about the whole host at one moment."""

    link_faults: dict[int, str] = field(default_factory=dict)
    """Link index → reason."""
    link_suspects: dict[int, str] = field(default_factory=dict)
    path_faults: dict[int, str] = field(default_factory=dict)
    """Path index → reason; never of a link that is itself at fault."""
    congested: dict[int, str] = field(default_factory=dict)
    """Link index → what would be a verdict or a suspicion on it if its payload did not move."""
    silent_hosts: frozenset[str] = frozenset()
    """Peers heard before and silent now on all links."""
    again_ns: int | None = None
    """When to judge again though nothing happens: a verdict waits for the kernel's receive path, or
    for payload to stop moving."""


class _Wait(Enum):
    """What a silence that is proven still waits for."""

    NOTHING = "nothing"
    KERNEL = "the kernel's receive path"
    PAYLOAD = "payload that moves"


class _Said(NamedTuple):
    reason: str = ""
    waits_for: _Wait = _Wait.NOTHING


class FailureDetector:
    """Judges all paths of the host together; remembers since when each silence has a witness."""

    def __init__(
        self,
        rules: Rules,
        receive_path: ReceivePath | None = None,
        progress: ByteProgress | None = None,
    ) -> None:
        self.rules = rules
        self.receive_path = receive_path or ReceivePath()
        self.progress = progress or ByteProgress()
        self._silences = Silences()
        self._witnessed: dict[int, int] = {}
        self._reported: dict[int, int] = {}

    def reset(self) -> None:
        """Path indices have another meaning from now on."""
        self._silences = Silences()
        self._witnessed.clear()
        self._reported.clear()
        self.receive_path.reset()
        self.progress.reset()

    def judge(self, paths: Sequence[PathView], now: int) -> Verdict:
        """The verdict; call it whenever a path's misses changed.

        Args:
            paths: all of the host's.
            now: as of when the prober wrote them: what it had not drained by then is not known.
        """
        by_link: dict[int, list[PathView]] = {}
        by_peer: dict[str, list[PathView]] = {}
        for path in paths:
            if path.heard:
                by_link.setdefault(path.link, []).append(path)
                by_peer.setdefault(path.peer, []).append(path)
        faults: dict[int, str] = {}
        suspects: dict[int, str] = {}
        congested: dict[int, str] = {}
        path_faults: dict[int, str] = {}
        self.receive_path.begin()
        self.progress.begin(now)
        for link, all_paths in by_link.items():
            if all(path.clean for path in all_paths):
                self._forget(link, all_paths, now)
                continue
            self.progress.note(self.rules.link_interval_ns)
            sent = {p.index: self._sent(p, by_peer[p.peer], now) for p in all_paths}
            self._keep_waits(all_paths, sent)
            said = self._link_fault(link, all_paths, sent, now)
            if said.reason:
                {_Wait.NOTHING: faults, _Wait.KERNEL: suspects, _Wait.PAYLOAD: congested}[
                    said.waits_for
                ][link] = said.reason
                continue
            own = [p for p in all_paths if self._counts(p, 2 * self.rules.link_interval_ns, now)]
            missed = [(p.peer, p.rx_missed + p.tx_missed) for p in own if not p.clean]
            if _enough(missed, self.rules):
                doubt = f"probes missing to {_names({peer for peer, _ in missed})}"
                (congested if self._moves(link, own) else suspects)[link] = doubt
                if self._undecided(link, own, now):
                    continue
            else:
                self._reported.pop(link, None)
            faulty = set()
            for path in own:
                wait = path.interval_ns + self.rules.link_interval_ns
                if self._counts(path, wait, now) and (
                    reason := self._path_fault(path, sent[path.index], all_paths, now)
                ):
                    path_faults[path.index] = reason
                    faulty.add(path.index)
            if all(p.clean or p.index in faulty for p in own) and any(p.clean for p in own):
                suspects.pop(link, None)
        self.receive_path.end()
        self.progress.end()
        silent = {
            peer
            for peer, own in by_peer.items()
            if all(p.rx_missed >= self.rules.misses for p in own)
        }
        waits = (self.receive_path.again_ns, self.progress.again_ns)
        again = min((at for at in waits if at is not None), default=None)
        return Verdict(faults, suspects, path_faults, congested, frozenset(silent), again)

    def _forget(self, link: int, paths: list[PathView], now: int) -> None:
        self._silences.broken(link, now)
        self._reported.pop(link, None)
        for path in paths:
            self._witnessed.pop(path.index, None)

    def _link_fault(
        self, link: int, paths: list[PathView], sent: dict[int, int], now: int
    ) -> _Said:
        """Why the link is at fault ("": it is not), and what that is still to wait for."""
        rules, waiting = self.rules, _Said()
        heard = self._silences.rx(link, paths, sent, rules, now)
        if heard.proven(rules):
            said = self._unheard(("link", link), link, now)
            reason = f"nothing heard from {_names(heard.peers)}{said.reason}"
            if said.waits_for is _Wait.NOTHING:
                return _Said(reason)
            waiting = _Said(reason, said.waits_for)
        reported = {
            p.index for p in paths if p.tx_missed and self._counts(p, rules.link_interval_ns, now)
        }
        told = self._silences.tx(link, paths, reported, rules, now)
        if told.proven(rules):
            wait, why = self.progress.ask(("link", link), link, TX, rules.link_interval_ns)
            reason = f"not heard by {_names(told.peers)}" + (f"; {why}" if why else "")
            if not wait:
                return _Said(reason)
            waiting = waiting if waiting.reason else _Said(reason, _Wait.PAYLOAD)
        return waiting

    def _unheard(
        self, silence: Hashable, link: int, now: int, longest_ns: int | None = None
    ) -> _Said:
        """What a silence of our own hearing still waits for; the reason is what to add to it."""
        interval = self.rules.link_interval_ns
        wait, why = self.progress.ask(silence, link, RX, interval, longest_ns)
        if wait:
            return _Said(f"; {why}", _Wait.PAYLOAD)
        behind, stalled = self.receive_path.ask(silence, now, interval)
        text = "".join(f"; {text}" for text in (why, stalled) if text)
        return _Said(text, _Wait.KERNEL if behind else _Wait.NOTHING)

    def _silent_ways(self, path: PathView, sent: int) -> list[Direction]:
        """In which directions a path misses enough to be at fault by itself."""
        needed = self.rules.misses + self.rules.queued(path.queue_ns, path.interval_ns)
        missing = {RX: sent, TX: path.tx_missed}
        return [way for way, count in missing.items() if count >= needed]

    def _keep_waits(self, paths: Iterable[PathView], sent: Mapping[int, int]) -> None:
        """Silences of paths are there also while their link alone is judged."""
        for path in paths:
            silence = ("path", path.index)
            for way in self._silent_ways(path, sent[path.index]):
                self.progress.keep(silence, way)
                if way is RX:
                    self.receive_path.keep(silence)

    def _path_fault(
        self, path: PathView, sent: int, same_link: Iterable[PathView], now: int
    ) -> str:
        rules, silence = self.rules, ("path", path.index)
        ways = self._silent_ways(path, sent)
        if RX in ways:
            longest = ALONE_NS if self._alone(path, same_link) else None
            said = self._unheard(silence, path.link, now, longest)
            if said.waits_for is _Wait.NOTHING:
                return f"{path.peer} not heard on this path{said.reason}"
        if TX in ways:
            wait, why = self.progress.ask(silence, path.link, TX, rules.link_interval_ns)
            if not wait:
                return f"not heard by {path.peer} on this path" + (f"; {why}" if why else "")
        return ""

    def _alone(self, path: PathView, same_link: Iterable[PathView]) -> bool:
        """Whether another peer was heard on the link since this silence, without a queue."""
        return any(
            p.peer != path.peer
            and p.clean
            and p.last_heard_ns > path.due
            and not self.rules.queued(p.queue_ns, self.rules.link_interval_ns)
            for p in same_link
        )

    def _moves(self, link: int, paths: Iterable[PathView]) -> bool:
        """Whether a link moves payload in a direction in which probes are missing."""
        interval = self.rules.link_interval_ns
        ways = {RX: any(p.rx_missed for p in paths), TX: any(p.tx_missed for p in paths)}
        return any(
            missing and self.progress.flowing(link, way, interval) for way, missing in ways.items()
        )

    def _sent(self, path: PathView, same_peer: list[PathView], now: int) -> int:
        """How many of the missing packets the peer sent; notes since when it is known to live."""
        sent = 0
        if path.rx_missed:
            sent = self._silences.vouched(path, same_peer, self.rules, now)
            lives = sent > 0
        else:
            lives = any(p.clean for p in same_peer if p.link != path.link)
        if path.clean or not lives:
            self._witnessed.pop(path.index, None)
        else:
            self._witnessed.setdefault(path.index, now)
        return sent

    def _counts(self, path: PathView, wait: int, now: int) -> bool:
        """Whether the path may speak: it misses nothing, or has had a witness for ``wait`` ns."""
        return path.clean or now - self._witnessed.get(path.index, now) >= wait

    def _undecided(self, link: int, paths: list[PathView], now: int) -> bool:
        """Whether the link may still turn out to be at fault.

        RX: nothing was heard on it since the silence; decided within the slowest path's interval,
        when its packet is heard or overdue. TX: a path without a report is clean only when its
        peer has had the time to miss us too.
        """
        silent = [p.last_heard_ns for p in paths if p.rx_missed]
        if silent:
            return not any(p.clean and p.last_heard_ns > max(silent) for p in paths)
        since = self._reported.setdefault(link, now)
        slowest = max((p.interval_ns for p in paths if p.clean), default=0)
        return now - since < slowest * 3 // 2


def healthy(paths: Iterable[PathView], known: Iterable[int], live_peers: frozenset[str]) -> bool:
    """Whether probes have nothing against bringing a link back.

    Args:
        paths: the link's.
        known: indices of paths that were heard at any time (a prober that has just started has
            heard nobody, and that must not bring a black hole back).
        live_peers: heard cleanly on another link.

    Returns:
        True when at least half of the known paths to live peers are sound, or there are none. One
        on which the peer sent a bye is none.
    """
    wanted = set(known)
    own = [p for p in paths if p.index in wanted and p.peer in live_peers and not p.gone]
    return sum(p.sound for p in own) * 2 >= len(own)


def live_peers(paths: Iterable[PathView], without_link: int) -> frozenset[str]:
    """Peers with a clean path over another link."""
    return frozenset(p.peer for p in paths if p.link != without_link and p.clean)


def _enough(missing: list[tuple[str, int]], rules: Rules) -> bool:
    peers = {peer for peer, _ in missing}
    return len(peers) >= rules.min_peers and sum(n for _, n in missing) >= rules.misses


def _names(peers: set[str]) -> str:
    names = sorted(peers)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def added(verdict: Verdict, links: dict[int, str], paths: dict[int, str]) -> Verdict:
    """The verdict with faults of other evidence; where both speak, the verdict's reason stays."""
    if not links and not paths:
        return verdict
    return replace(
        verdict,
        link_faults=links | verdict.link_faults,
        path_faults=paths | verdict.path_faults,
    )
