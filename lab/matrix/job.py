"""One job under the matrix's faults: is it moving, over which rails, and is it sound."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence

from lab.cluster import Cluster, wait_until
from lab.matrix.cells import Cell, Stage
from lab.matrix.observe import RankView
from telemetry.statspage import StatsEventKind

PATIENCE_S = 40.0
"""What may be slow on a loaded machine; far below FABRIC_DEADLINE (120 s)."""
CHANNELS = 4
_LOOK_S = 0.04  # two publications of a stats page
_FLOW_S = 0.4
_STEP_BYTES = 4 << 20

Place = tuple[int, int]
"""(host, rail)."""


class CellError(AssertionError):
    """A cell did not go as the matrix expects; the text says what was seen."""


def world_of(cell: Cell, hosts: int) -> int:
    """Ranks: point to point needs pairs."""
    return 2 if cell.pattern == "p2p" else hosts


def size_of(cell: Cell, world: int) -> int:
    """``--size``: less than a message for each rank cannot be shared out among them."""
    return max(cell.bytes, 8 * world) if cell.pattern != "p2p" else cell.bytes


class Job:
    """A job of a cell's pattern and size; it runs until it is told to stop, or for ``--iters``."""

    def __init__(
        self, lab: Cluster, cell: Cell, *args: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.lab = lab
        self.cell = cell
        world = world_of(cell, lab.topology.hosts)
        options = ["--size", str(size_of(cell, world)), "--channels", str(CHANNELS)]
        options += ["--wait", "block", "--interval-ms", "50"]
        options += ["--pingpong", "0"] if cell.pattern == "p2p" else []
        self.perf = lab.start_perf(
            cell.pattern,
            *options,
            *args,
            *(() if "--iters" in args else ("--duration", "3600")),
            nodes=lab.nodes[:world],
            env={"FABRIC_HOLD": "0.1", **(env or {})},
            name=f"{cell.pattern}-{cell.size}",
        )
        self.ranks = [RankView(self.perf, rank) for rank in range(world)]

    @property
    def key(self) -> tuple[Stage, str, str]:
        """Cells with the same can share it."""
        return self.cell.stage, self.cell.pattern, self.cell.size

    # Movement

    def wait_moving(self) -> None:
        """Until every rank has done an iteration.

        Raises:
            TimeoutError, CellError: it did not, or a rank ended.
        """
        self.wait(lambda: all(i > 0 for _, i in self.done()), "a first iteration")

    def done(self) -> list[tuple[int, int]]:
        """(bytes, iterations) done by each rank."""
        for rank in self.ranks:
            rank.tail.read()
        return [(rank.tail.bytes, rank.tail.iterations) for rank in self.ranks]

    def wait(
        self,
        condition: Callable[[], bool],
        what: str,
        seconds: float = PATIENCE_S,
        *,
        ends: bool = False,
    ) -> float:
        """Until ``condition``; the seconds that took. ``ends`` is that of `check_sound`.

        Raises:
            CellError: it did not come true in time, or the job broke meanwhile.
        """
        began = time.monotonic()

        def now() -> bool:
            self.check_sound(ends=ends)
            return condition()

        try:
            wait_until(now, seconds, what)
        except TimeoutError as error:
            raise CellError(f"{error}; {self.state()}") from None
        return time.monotonic() - began

    def progress(self) -> float:
        """Until every rank has done more of the collective; the seconds that took.

        An iteration counts; of a large one a part does, for ranks that count bytes.
        """
        before = self.done()
        step = min(_STEP_BYTES, self.cell.bytes)

        def moved() -> bool:
            return all(
                b >= was_b + step if step == _STEP_BYTES else i > was_i + 1
                for (b, i), (was_b, was_i) in zip(self.done(), before, strict=True)
            )

        return self.wait(moved, "progress of every rank")

    def comes_to_rest(self, seconds: float, rest_s: float = 0.5) -> None:
        """Until nothing gets done for ``rest_s``: what was on the far side still arrives.

        Raises:
            CellError: something did all the time.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            before = self.done()
            time.sleep(rest_s)
            if self.done() == before:
                return
        raise CellError(f"no rest within {seconds} s of a fault that stops it: {self.done()}")

    def check_still(self, seconds: float) -> None:
        """Nothing gets done, for so long.

        Raises:
            CellError: something did.
        """
        before = self.done()
        time.sleep(seconds)
        if self.done() != before:
            raise CellError(f"it went on under a fault that stops it: {before}, {self.done()}")

    # Rails

    def flowing(self, host: int, count: int) -> list[int]:
        """``count`` rails of a host that carry payload at this moment, the busiest first.

        Raises:
            CellError: there are not so many.
        """
        found: list[int] = []

        def busy() -> bool:
            before = self.ranks[host].rails()
            time.sleep(_FLOW_S if self.cell.size == "64MB" else _LOOK_S)
            moved = {
                rail: now.moved - before[rail].moved
                for rail, now in self.ranks[host].rails().items()
                if rail in before
            }
            found[:] = sorted((r for r, n in moved.items() if n > 0), key=lambda r: -moved[r])
            return len(found) >= count

        self.wait(busy, f"payload on {count} rails of h{host}")
        return found[:count]

    def carry_again(self, places: Sequence[Place]) -> float:
        """Until each of these rails has carried payload from now on; the seconds that took."""
        before = {place: self.ranks[place[0]].rails().get(place[1]) for place in places}

        def carried() -> bool:
            for (host, rail), was in before.items():
                now = self.ranks[host].rails().get(rail)
                if now is None or was is None or now.moved <= was.moved:
                    return False
            return True

        return self.wait(carried, f"payload on {places} again")

    def given_up(self, since_ns: int) -> dict[str, float]:
        """How long after ``since_ns`` the first path was given up, if any was; seconds."""
        times = [
            event.time_ns
            for rank in self.ranks
            for event in rank.since(StatsEventKind.PATH_DOWN, since_ns)
        ]
        return {"given_up_s": round((min(times) - since_ns) / 1e9, 4)} if times else {}

    # Soundness

    def check_sound(self, *, ends: bool = False) -> None:
        """No rank has ended, none has an error or a wrong byte.

        ``ends``: it ends by itself, so that status 0 is sound, too.

        Raises:
            CellError: one has.
        """
        for rank in self.ranks:
            rank.tail.read()
            if rank.tail.errors or rank.tail.corrupt_bytes:
                raise CellError(
                    f"rank {rank.rank}: {rank.tail.corrupt_bytes} corrupt bytes, "
                    f"errors {rank.tail.errors}; {rank.last_words()}"
                )
            code = rank.process.poll()
            if code is not None and not (ends and code == 0):
                raise CellError(f"rank {rank.rank} ended with {code}; {rank.last_words()}")

    def state(self) -> str:
        """For messages: what each rank has done and what its rails look like."""
        lines = []
        for rank, (moved, iterations) in zip(self.ranks, self.done(), strict=True):
            page = rank.page()
            rails = [] if page is None else page.rails
            paths = ", ".join(f"{r.netdev} {r.live_paths}+{r.dead_paths}" for r in rails)
            lines.append(f"rank {rank.rank}: {iterations} iterations, {moved} bytes; {paths}")
            lines += [f"  {e}" for e in rank.read_events()[-6:]]
        return "\n".join(lines)

    def finish(self) -> dict[str, object]:
        """Tell it to stop, and see that it ends in good order.

        Raises:
            CellError: it does not, or a byte was wrong, or a call failed.
        """
        self.check_sound()
        began = time.monotonic()
        for rank in self.perf.ranks:
            rank.send_signal(signal.SIGTERM)
        return self.ended() | {"end_s": round(time.monotonic() - began, 3)}

    def ended(self) -> dict[str, object]:
        """See that all ranks end by themselves, clean.

        Raises:
            CellError: as `finish`.
        """
        try:
            results = self.perf.wait(PATIENCE_S)
        except TimeoutError as error:
            raise CellError(str(error)) from None
        for result in results:
            clean = result.status == 0 and not result.errors and result.end
            if not clean or result.end["errors"] or result.end["corrupt_bytes"]:
                words = self.ranks[result.rank].last_words()
                raise CellError(f"rank {result.rank} did not end clean: {result}; {words}")
        iterations = {result.end["iterations"] for result in results}
        return {"iterations": max(iterations), "bytes": results[0].end["bytes"]}

    def kill(self) -> None:
        """Whatever it does: end it."""
        self.perf.kill()
