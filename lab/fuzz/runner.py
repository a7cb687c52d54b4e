"""Damaged inputs into every parser: ``python -m lab.fuzz -n 10000000 [TARGET...]``.

A parser may return, or refuse with an error of its own; anything else is a finding, printed with
the input. Seeded, so that a finding can be had again. A few targets at a time. What a probe packet
and a request to the prober meet is C++: these run under libFuzzer with sanitizers (`lab/fuzz.sh`).

``--store`` writes results to tests/results/fuzz.json with date and revision, also of a run that is
ended before its time; ``--more`` adds to the inputs that are there already, with other seeds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from lab.fuzz.control import control
from lab.fuzz.optics import module, pcie
from lab.fuzz.pages import clock_ports, ring
from lab.fuzz.parsers import PARSERS, Target, of_bytes

REPO = Path(__file__).resolve().parents[2]
RESULTS = REPO / "tests" / "results" / "fuzz.json"
FUZZ = REPO / "lab" / "fuzz.sh"
BUILD_FAILED = 3
"""Exit status of that."""
LONGEST_S = 7200
CHUNK = 250_000
"""Inputs between two results of a long run."""
TARGETS: dict[str, Callable[[], Target]] = {
    **{name: partial(of_bytes, *both) for name, both in PARSERS.items()},
    "module_eeprom": module,
    "pcie_sysfs": pcie,
    "ring": ring,
    "control_socket": control,
    "clock_ports": clock_ports,
}
"""Name → what makes the target, which may open files."""
NATIVE = {
    "probe_packets": "prober_wire_fuzz",
    "prober_socket": "prober_control_fuzz",
    "prober_ports": "prober_ports_fuzz",
}
"""Name → libFuzzer's program."""


@dataclass(frozen=True, slots=True)
class Result:
    """Of one target: inputs, how many the parser refused, seconds, and the finding or ``""``.

    ``error``: why it was not fuzzed at all, which is no finding.
    """

    target: str
    inputs: int
    refused: int | None
    """None: not counted."""
    seconds: float
    finding: str = ""
    error: str = ""


def fuzz(name: str, inputs: int, seed: int = 1) -> Result:
    """Give a target so many inputs; ends at the first finding."""
    target = TARGETS[name]()
    try:
        return _fuzz(name, target, inputs, random.Random(seed))
    finally:
        target.close()


def _fuzz(name: str, target: Target, inputs: int, rng: random.Random) -> Result:
    make, parse, refusals = target.make, target.parse, target.refusals
    began, refused = time.monotonic(), 0
    for number in range(inputs):
        data = make(rng)
        try:
            refused += parse(data) is True
        except refusals as error:
            refused += bool(str(error))
        except Exception as error:
            shown = data.hex() if isinstance(data, bytes) else repr(data)
            finding = f"{type(error).__name__}: {error}: {shown}"
            return Result(name, number + 1, refused, time.monotonic() - began, finding)
    return Result(name, inputs, refused, time.monotonic() - began)


def fuzz_native(name: str, inputs: int) -> Result:
    """The same with libFuzzer, which goes on from what it has learnt before."""
    began = time.monotonic()
    done = subprocess.run(
        ["bash", str(FUZZ), str(LONGEST_S), NATIVE[name]],
        env=os.environ | {"FUZZ_RUNS": str(inputs)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == BUILD_FAILED:
        error = "the build failed: " + done.stderr[-2000:]
        return Result(name, 0, None, time.monotonic() - began, error=error)
    found = re.search(r"no finding in (\d+) inputs", done.stdout)
    count = int(found[1]) if found else 0
    finding = "" if found and not done.returncode else (done.stdout + done.stderr)[-2000:]
    return Result(name, count, None, time.monotonic() - began, finding or "")


def _revision() -> str:
    describe = ["git", "describe", "--always", "--dirty"]
    said = subprocess.run(describe, cwd=REPO, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def keep(results: Mapping[str, Result], revision: str, path: Path = RESULTS) -> None:
    """Write results beside those of other targets, which stay, as does that of one not fuzzed."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    for name, result in results.items():
        if result.error:
            continue
        row = asdict(result)
        del row["error"]
        kept[name] = row | {
            "seconds": round(result.seconds),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "revision": revision,
        }
    order = [name for name in (*NATIVE, *TARGETS) if name in kept]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: kept[name] for name in order}, indent=1) + "\n")


def _stored(path: Path = RESULTS) -> dict[str, Result]:
    kept = json.loads(path.read_text()) if path.exists() else {}
    names = {field.name for field in fields(Result)}
    return {
        key: Result(**{name: value for name, value in row.items() if name in names})
        for key, row in kept.items()
    }


def run(
    names: Sequence[str], inputs: int, *, seed: int = 1, jobs: int = 2,
    done: Callable[[Result], None] = lambda _: None,
) -> list[Result]:  # fmt: skip
    """Fuzz these targets, ``jobs`` at a time; ``done`` is told what each has reached so far."""
    reached: dict[str, Result] = {}
    with ProcessPoolExecutor(max_workers=jobs, initializer=_hush) as pool:
        work: list[Future[Result]] = []
        for name in names:
            if name in NATIVE:
                work.append(pool.submit(fuzz_native, name, inputs))
                continue
            for number, first in enumerate(range(0, inputs, CHUNK)):
                count = min(CHUNK, inputs - first)
                work.append(pool.submit(fuzz, name, count, seed * 1_000_003 + number))
        for job in as_completed(work):
            result = job.result()
            before = reached.get(result.target)
            reached[result.target] = added(before, result) if before else result
            done(reached[result.target])
    return [reached[name] for name in names]


def added(one: Result, other: Result) -> Result:
    """Both runs of a target together."""
    counted = [x.refused for x in (one, other) if x.refused is not None]
    return Result(
        one.target,
        one.inputs + other.inputs,
        sum(counted) if len(counted) == 2 else None,
        one.seconds + other.seconds,
        one.finding or other.finding,
        one.error or other.error,
    )


def _hush() -> None:
    """What the daemon would log of ten million requests nobody reads; and nobody is waited for.

    A reader of a row that is being written yields to its writer. Here there is none, and on a busy
    machine each yield lets all others run first.
    """
    os.sched_yield = lambda: None
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _show(result: Result) -> None:
    if result.error:
        print(f"{result.target}: NOT FUZZED: {result.error}", flush=True)
        return
    share = (
        "" if result.refused is None else f" ({100 * result.refused / result.inputs:.0f} % refused)"
    )
    text = result.finding or "no finding"
    print(
        f"{result.target}: {text} in {result.inputs} inputs{share}, {result.seconds:.0f} s",
        flush=True,
    )


def main() -> int:
    """Fuzz; 1 when there was a finding, or fewer inputs than asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", "--inputs", type=int, default=10_000_000, help="of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--store", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--more", action="store_true", help="add to what is stored")
    known = (*NATIVE, *TARGETS)
    parser.add_argument("targets", nargs="*", help="of: " + ", ".join(known))
    given = parser.parse_args()
    if unknown := set(given.targets) - set(known):
        parser.error(f"no target {min(unknown)}")

    revision = _revision()  # Of what is loaded, whatever the tree becomes meanwhile.
    before = _stored() if given.more else {}
    seed = given.seed + sum(result.inputs for result in before.values())

    def done(result: Result) -> None:
        old = before.get(result.target)
        result = added(old, result) if old else result
        _show(result)
        if given.store:
            keep({result.target: result}, revision)

    names = given.targets or list(known)
    results = run(names, given.inputs, seed=seed, jobs=given.jobs, done=done)
    return int(any(r.error or r.finding or r.inputs < given.inputs for r in results))
