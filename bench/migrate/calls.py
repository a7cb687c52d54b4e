"""What a step waits for us: time inside of our calls on the critical path, nothing being lost.

``bench.training.timed`` has the loop. A step mostly sleeps, so ranks that share the cores of this
machine do not wait for each other's computing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles

from bench.migrate.jobs import run_job, standalone
from bench.report import Row

STEPS_MS = (60, 500, 2000)
ASKED_MS = 1.2
"""Of a step without a gradient log: the issue's figure, 2 % of 60 ms."""
LOG_SHARE = 0.02
"""Of a step of 2 s, with a gradient log."""
KINDS = {
    "DDP, 2 ranks": (2, ""),
    "HSDP 2 × 2": (4, "2x2"),
    "FSDP2 over 4 with a gradient log": (4, "4"),
}
_WARM, _SPAN_S = 12, 30.0
_SIZES = re.compile(r"gradients since: (\d+) bytes of host memory for each rank, (\d+) a step")


def calls(*, quick: bool) -> list[Row]:
    """A row for each kind of job and length of a step."""
    rows = []
    for kind, (ranks, mesh) in KINDS.items():
        for step_ms in STEPS_MS:
            steps = _WARM + max(8, int((0.2 if quick else 1) * _SPAN_S * 1e3 / step_ms))
            rows.append(_row(kind, ranks, mesh, step_ms, steps))
    return rows


def _row(kind: str, ranks: int, mesh: str, step_ms: int, steps: int) -> Row:
    environment = {"BENCH_MESH": mesh} if mesh else {}
    with run_job(_command(steps, ranks, step_ms), environment, ranks=ranks) as job:
        job.wait_end(60 + 4 * steps * (step_ms + 100) / 1e3)
        taken = _taken([(job.directory / f"calls.{rank}").read_text() for rank in range(ranks)])
        sizes = _SIZES.search(job.log())
    each = [sum(parts) for parts in taken]
    asked = None if sizes else ASKED_MS
    if sizes and step_ms == STEPS_MS[-1]:
        asked = LOG_SHARE * step_ms
    between, ends, gate = (median(parts) for parts in zip(*taken, strict=True))
    sent = f"; sent to the buddy: {int(sizes[2]) / 1e6:.2f} MB a step" if sizes else ""
    return Row(
        f"inside our calls, {kind}, a step of {step_ms} ms, median", asked, median(each), "ms",
        note=f"{100 * median(each) / step_ms:.2f} % of the step; at the gate {gate:.2f}, between "
        f"steps {between:.2f}, attempt {ends:.2f}; 95 %: {quantiles(each, n=20)[-1]:.2f}; "
        f"{len(each)} steps of all ranks{sent}",
    )  # fmt: skip


def _taken(texts: Sequence[str]) -> list[tuple[float, ...]]:
    """Ms between the steps, in the attempt's ends and at the gate, of the steps that count."""
    return [tuple(map(float, line.split())) for text in texts for line in text.splitlines()[_WARM:]]


def _command(steps: int, ranks: int, step_ms: int) -> Callable[[Path], list[str | Path]]:
    job = standalone(steps, spares=1, ranks=ranks, loop="timed.py")
    return lambda directory: [*job(directory), str(step_ms)]
