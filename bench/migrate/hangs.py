"""Ranks that hang, in three ways, and ranks that only seem to: ``bench.training.hanging``.

The clock runs from the moment at which a rank hangs until the process that replaces it has applied
the rank's next step. Healthy ranks work as unevenly as they may, evaluate and write checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.migrate.jobs import LOOPS, RANKS, REPO, JobError
from bench.report import Row

KINDS = {"stop": "a process stopped by a signal", "held": "a held GIL", "silent": "a silent loop"}
FROZEN_ASKED_S, SILENT_ASKED_S = 10.0, 40.0
"""The second: 30 s, for the steps are short, and what a takeover takes."""
_STEPS, _EVERY = 160, 40
_END_S = 400.0
_SCRIPT = LOOPS / "hanging.py"


@dataclass(frozen=True)
class Played:
    """What came out of one job. ``replaced_s``: by kind; ``end``: hashes of the ranks."""

    replaced_s: dict[str, float]
    reasons: list[str]
    end: list[str]


def play(hangs: dict[str, str], steps: int = _STEPS, **environment: str) -> Played:
    """One job whose ranks hang. ``hangs``: kind → ``rank:step``. Raises ``JobError``."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        said = ",".join(f"{where}:{kind}" for kind, where in hangs.items())
        with _start(out, steps, HANGS=said, **environment) as process:
            try:
                error = process.communicate(timeout=_END_S)[1]
            except subprocess.TimeoutExpired:
                process.terminate()
                error = process.communicate()[1]
        if process.returncode:
            raise JobError(f"the job ended with status {process.returncode}\n{error[-2000:]}")
        replaced = {kind: _replaced_s(out, kind, where) for kind, where in hangs.items()}
        end = [(out / f"end.{rank}").read_text() for rank in range(RANKS)]
        return Played(replaced, _reasons(out), end)


def stopped_while_healthy(minutes: float, factor: float = 1.0, **environment: str) -> list[str]:
    """Recoveries of a healthy job whose steps are uneven, in so many minutes: why, of each."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        with _start(out, 1_000_000, UNEVEN=str(factor), **environment) as process:
            deadline = time.monotonic() + 60 * minutes
            while time.monotonic() < deadline and process.poll() is None:
                time.sleep(1)
            process.send_signal(signal.SIGTERM)
            error = process.communicate(timeout=_END_S)[1]
        if "ended by SIGTERM" not in error:
            raise JobError(f"the job ended by itself\n{error[-2000:]}")
        if not any(path.stat().st_size for path in out.glob("commits.*")):
            raise JobError(f"no step was applied\n{error[-2000:]}")
        return _reasons(out)


def hang(*, quick: bool) -> list[Row]:
    """Three ways to hang, and healthy ranks."""
    where = {kind: f"{rank}:{_EVERY * (rank + 1)}" for rank, kind in enumerate(KINDS)}
    calm, got = play({}), play(where)
    rows = []
    for kind, what in KINDS.items():
        asked = SILENT_ASKED_S if kind == "silent" else FROZEN_ASKED_S
        rows.append(Row(f"{what} is replaced within", asked, got.replaced_s[kind], "s"))
    same = float(got.end == calm.end)
    rows.append(Row("parameters as undisturbed, SHA-256, all three", 1, same, "", "equal"))
    minutes = 2.0 if quick else 30.0
    stopped = stopped_while_healthy(minutes)
    what = f"healthy ranks stopped in {minutes:g} min of uneven steps and 20 s checkpoints"
    rows.append(Row(what, 0, len(stopped), "", note="; ".join(stopped)[:200]))
    return rows


def _start(out: Path, steps: int, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fabric_train.run", "--standalone", "--nproc-per-node"]
    command += [str(RANKS), "--spares", "1", "--records", str(out / "records.json")]
    path = f"{REPO}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        [*command, str(_SCRIPT), str(out), str(steps)],
        env={**os.environ, "PYTHONPATH": path, **environment}, cwd=out, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def _reasons(out: Path) -> list[str]:
    return [one["reason"] for one in json.loads((out / "records.json").read_text())]


def _replaced_s(out: Path, kind: str, where: str) -> float:
    rank, step = where.split(":")
    began = int((out / f"hang.{rank}-{step}-{kind}").read_text())
    commits = [
        list(map(int, line.split()))
        for path in out.glob("commits.*")
        for line in path.read_text().splitlines()
    ]
    return min((at - began) / 1e9 for at, who, _, _ in commits if who == int(rank) and at > began)
