"""``./run demo rdma``: NICs fail under an all-reduce that the plugin carries over RDMA.

Four hosts with two rails each, as network namespaces of one virtual machine whose kernel has
soft-RoCE. The machine is emulated: nothing here says how fast RDMA is, only that every byte
arrives, over which rail it went, and for how long (on the guest's clock) nothing moved.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from lab.faults.truth import Row
from lab.lifecycle.registry import LabError
from lab.node import build_dir
from lab.vm.rdma import namespaces
from lab.vm.rdma.fault import GuestFault
from lab.vm.rdma.faults import Carrier, RoceDrop
from lab.vm.rdma.lab import GuestLab
from lab.vm.rdma.perf import GuestPerf, longest_stall_ns
from lab.vm.wire import VmError

HOSTS, RAILS = 4, 2
UNDER_S, HEAL_S, QUIET_S = 6.0, 60.0, 4.0
"""A fault lasts; RDMA may take to be back; the job runs before the first."""
BACK = 0.5
"""Of the packets before a fault: so many, and RDMA is back on the rail."""
READY_S = 180.0
SIZE = "1M"
SAMPLE_MS = 50


@dataclass(frozen=True, slots=True)
class Chapter:
    """One fault of the story."""

    title: str
    fault: GuestFault
    host: int
    rail: int


@dataclass(frozen=True, slots=True)
class ChapterResult:
    """What a chapter showed. Packets are RDMA's, of the host that was hit, a second each."""

    title: str
    stall_ms: float
    before: float
    on_rail: float
    on_others: float
    back_s: float | None
    """Until RDMA was back on the rail, from the repair; None: it did not come back."""


def story() -> list[Chapter]:
    """A cable, and RDMA alone. A device that is removed and added is not back in a busy job."""
    return [
        Chapter("cable pulled, h0 rail1", Carrier("h0:rail1"), 0, 1),
        Chapter("RDMA lost while IP works, h2 rail0", RoceDrop("h2:rail0"), 2, 0),
    ]


def sent(lab: GuestLab, host: int) -> list[int]:
    """RDMA packets that each rail of a host has sent; 0 where it has no device now."""
    shown = lab.run(host, ["rdma", "-j", "statistic", "show"]).check().out
    found = {row["ifname"]: int(row.get("sent_pkts", 0)) for row in json.loads(shown or "[]")}
    return [found.get(f"rxe{rail}", 0) for rail in range(lab.topology.rails)]


def window(rows: Sequence[Row], begin_ns: int, end_ns: int) -> list[Row]:
    """Samples between two times of the guest, and the last one before. Pure."""
    samples = [row for row in rows if row["type"] == "sample"]
    before = [row for row in samples if row["t_ns"] < begin_ns][-1:]
    return before + [row for row in samples if begin_ns <= row["t_ns"] <= end_ns]


class Demo:
    """The job and the story, in a lab that is up."""

    def __init__(self, lab: GuestLab, console: Console) -> None:
        self._lab = lab
        self._console = console
        self._began = time.monotonic()

    def play(self, chapters: Sequence[Chapter]) -> tuple[list[ChapterResult], GuestPerf]:
        """All chapters; the job has ended then. Raises ``LabError`` where it did not begin."""
        seconds = QUIET_S + len(chapters) * (UNDER_S + HEAL_S) + 60
        words = ["--size", SIZE, "--duration", str(seconds), "--interval-ms", str(SAMPLE_MS)]
        job = self._lab.perf("ring", *words, env={"FABRIC_VERBS": "1"}, timeout=seconds + 300)
        self._wait_carrying(job)
        self.say(f"ring all-reduce of {SIZE} over {HOSTS} hosts x {RAILS} rails: RDMA carries")
        time.sleep(QUIET_S)
        results = [self._chapter(job, chapter) for chapter in chapters]
        self.say("no fault is left; the job is asked to end")
        job.interrupt()
        return results, job

    def say(self, text: str) -> None:
        """One line of the story."""
        self._console.print(f"{time.monotonic() - self._began:6.1f} s  {text}", markup=False)

    def _wait_carrying(self, job: GuestPerf) -> None:
        deadline = time.monotonic() + READY_S
        while not any(row["type"] == "sample" and row["bytes"] for row in job.rows(0)):
            if not job.running or time.monotonic() > deadline:
                raise LabError(f"the job did not begin: {job.wait()[0].errors}")
            time.sleep(0.5)

    def _chapter(self, job: GuestPerf, chapter: Chapter) -> ChapterResult:
        lab, host, rail = self._lab, chapter.host, chapter.rail
        before = self._rate(host, 2.0)
        began = lab.machines[0].now_ns()
        self.say(chapter.title)
        with lab.inject(chapter.fault):
            time.sleep(UNDER_S / 2)  # whatever is noticed and moved is so by now
            under = self._rate(host, UNDER_S / 2)
            job_rows = job.rows(host)
        stall = longest_stall_ns(window(job_rows, began, lab.machines[0].now_ns()))
        self.say(f"  the job stood still for {stall / 1e6:.0f} ms and goes on; now it heals")
        back = self._back(host, rail, BACK * before[rail])
        others = sum(under) - under[rail]
        return ChapterResult(chapter.title, stall / 1e6, before[rail], under[rail], others, back)

    def _back(self, host: int, rail: int, least: float) -> float | None:
        """Seconds of the guest until the rail sends ``least`` RDMA packets a second again."""
        vm = self._lab.machines[0]
        began = vm.now_ns()
        while (passed := (vm.now_ns() - began) / 1e9) < HEAL_S:
            if self._rate(host, 1.0)[rail] >= least:
                return passed
        return None

    def _rate(self, host: int, seconds: float) -> list[float]:
        """RDMA packets a second of the guest that each rail of ``host`` sends."""
        began, first = self._lab.machines[0].now_ns(), sent(self._lab, host)
        time.sleep(seconds)
        passed = (self._lab.machines[0].now_ns() - began) / 1e9
        last = sent(self._lab, host)
        return [max(0, b - a) / passed for a, b in zip(first, last, strict=True)]


def table(results: Sequence[ChapterResult]) -> Table:
    """What each fault cost."""
    made = Table(title="what each fault cost", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("fault", "longest stall", "RDMA before", "under it", "other rail", "back after"):
        made.add_column(name, justify="left" if name == "fault" else "right")
    for one in results:
        rates = [f"{rate:.0f}/s" for rate in (one.before, one.on_rail, one.on_others)]
        back = "-" if one.back_s is None else f"{one.back_s:.0f} s"
        made.add_row(one.title, f"{one.stall_ms:.0f} ms", *rates, back)
    return made


def failures(results: Sequence[ChapterResult]) -> list[str]:
    """What is not as it should be, in the story itself. Pure."""
    wrong = []
    for one in results:
        if not one.before:
            wrong.append(f"{one.title}: RDMA did not carry before it")
        if not one.on_others:
            wrong.append(f"{one.title}: the other rail did not carry RDMA")
        if one.back_s is None:
            wrong.append(f"{one.title}: RDMA was not back on the rail within {HEAL_S:.0f} s")
    return wrong


def main(arguments: list[str]) -> int:
    """Play and print; 0 all bytes arrived and RDMA came back, 1 not so, 2 it could not run."""
    parser = argparse.ArgumentParser(prog="./run demo rdma", description=__doc__)
    parser.parse_args(arguments)
    console = Console(highlight=False)
    console.print("booting a machine whose kernel has soft-RoCE (half a minute) …")
    try:
        with namespaces.booted("demo", hosts=HOSTS, rails=RAILS) as lab:
            lab.push(build_dir())
            results, job = Demo(lab, console).play(story())
            ends = job.wait()
    except (LabError, VmError, OSError) as error:
        console.print(f"the demo could not run: {error}", style="bold red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; everything is removed")
        return 128 + signal.SIGINT
    console.print(table(results))
    wrong = failures(results)
    wrong += [f"h{end.rank} ended with {end.status}: {end.errors}" for end in ends if end.status]
    corrupt = sum(end.end.get("corrupt_bytes", 0) for end in ends)
    errors = sum(len(end.errors) for end in ends)
    for text in wrong:
        console.print(f"FAILED: {text}", style="bold red", markup=False)
    good = not (wrong or corrupt or errors)
    moved = sum(end.end.get("bytes", 0) for end in ends)
    text = f"{moved / 1e6:.0f} MB verified, {errors} errors, {corrupt} corrupt bytes"
    console.print(text, style="green" if good else "bold red")
    return 0 if good else 1
