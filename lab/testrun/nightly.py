"""What takes too long for each change: ``./run test nightly``, before an issue is resolved.

Each step's output goes to build/log/nightly-STEP.log. A step's result replaces its former one in
tests/results/nightly.json (date, revision, seconds, the line it ended with), which is committed.
One failure does not hide the next. A test of labs or virtual machines that fails is run three times
alone, as in each run of ``./run test``; if all pass, the step is ok and names it as FLAKY. A test
of ``tests/known_flaky.toml`` is named as RETURNED then, and the step has failed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lab.testrun import run_report
from lab.testrun.run_report import RunReport

REPO = Path(__file__).resolve().parents[2]
RESULTS = REPO / "tests" / "results" / "nightly.json"
LOGS = REPO / "build" / "log"
SCHEDULES = 1_000_000
FUZZ_SECONDS = 1800
PARSER_INPUTS = 10_000_000
EXAMPLES = 1000
LOADED_RUNS = 5
MATRIX = "tests/lab/test_matrix.py"
FAILED_TESTS = 1
"""Exit status of a pytest that ran to its end."""
BOUNDS = "tests/bench/test_clock_bounds.py"
LAB = ["tests/lab", f"--ignore={MATRIX}"]

CORES = os.cpu_count() or 1
COMPUTING = ["-n", str(CORES), "--dist", "loadfile"]
WAITING = ["-n", str(CORES + 1), "--dist", "loadgroup"]
"""As in lab/test.sh."""

Commands = list[tuple[list[str], Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of test; its commands run at the same time."""

    name: str
    what: str
    commands: Callable[[list[str]], Commands]
    """From further arguments of pytest."""
    retried: bool = False
    """Its one command is a pytest of the lab or VM tier (`lab.testrun.retry_alone`)."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a step ended."""

    what: str
    ok: bool
    said: str
    """The line that its output ended with."""
    seconds: float
    date: str
    revision: str
    machine: str


def _pytest(
    where: list[str], build: str, *more: str, marked: str = "nightly", **env: str
) -> Callable[[list[str]], Commands]:
    wrapper = ["setarch", "-R"] if build == "tsan" else []  # see native_prefix

    def commands(extra: list[str]) -> Commands:
        run = [*wrapper, sys.executable, "-m", "pytest", "-q", *where, "-m", marked]
        return [([*run, *more, *extra], {"FABRIC_BUILD": build, **env})]

    return commands


def _schedules(_: list[str]) -> Commands:
    each = {"FABRIC_SIM_RUNS": str(-(-SCHEDULES // CORES))}
    return [([str(REPO / "build/release/nccl_plugin/tests/plugin_sim_test")], each)] * CORES


def _fences(_: list[str]) -> Commands:
    each = {"FABRIC_FENCE_SCHEDULES": str(-(-SCHEDULES // CORES))}
    return [([str(REPO / "build/release/nccl_plugin/verbs/tests/verbs_fence_test")], each)] * CORES


def _loaded(extra: list[str]) -> Commands:
    beside = [sys.executable, "-m", "lab.testrun.loaded", "--times", str(LOADED_RUNS), "--"]
    lab = [sys.executable, "-m", "pytest", "-q", "tests/lab", "-m", "not nightly and not alone"]
    return [([*beside, *lab, *WAITING, *extra], {"FABRIC_BUILD": "asan"})]


def _native(_: list[str]) -> Commands:
    long = {"FABRIC_LONG": "1"}
    run = ["ctest", "-j", str(CORES), "--output-on-failure", "--test-dir"]
    cores = ["-LE", "processes"]
    return [
        ([*run, "build/release"], long),
        ([*run, "build/asan", *cores], long),
        (["setarch", "-R", *run, "build/tsan", *cores], long),
    ]


def _booted(extra: list[str]) -> Commands:
    within = [sys.executable, "-m", "lab.testrun.just_booted"]
    unit = [sys.executable, "-m", "pytest", "-q", "tests/unit", "-m", "not nightly", *COMPUTING]
    native = ["ctest", "--test-dir", "build/asan", "-j", str(CORES), "--output-on-failure"]
    env = {"FABRIC_BUILD": "release", "FABRIC_BUILT": "release"}
    return [([*within, *unit, *extra], env), ([*within, *native], {})]


def _alone(*command: str) -> Callable[[list[str]], Commands]:
    return lambda _: [([*command], {})]


STEPS = [
    Step("lint", "ruff, mypy, clang-format, clang-tidy", _alone("bash", "lab/lint.sh")),
    Step("schedules", f"{SCHEDULES:,} schedules of the plugin's cores", _schedules),
    Step(
        "fences", f"{SCHEDULES:,} schedules of NICs that write on until ERR is confirmed", _fences
    ),
    Step("fuzz", "parsers of packets", _alone("bash", "lab/fuzz.sh", str(FUZZ_SECONDS))),
    Step(
        "parsers",
        f"{PARSER_INPUTS:,} inputs into each parser (tests/results/fuzz.json)",
        _alone(sys.executable, "-m", "lab.fuzz", "--store", "-n", str(PARSER_INPUTS)),
    ),
    Step(
        "properties",
        f"{EXAMPLES:,} examples of each property of the unit tests",
        # The time limit is for the examples of a usual run.
        _pytest(
            ["tests/unit", *COMPUTING, "--timeout", "3600"],
            "release",
            marked="hypothesis",
            FABRIC_EXAMPLES=str(EXAMPLES),
        ),
    ),
    Step(
        "bounds",
        "bounds of fabric time, in worlds of other seeds each time",
        _pytest([BOUNDS], "release", "-n", str(CORES)),
    ),
    Step("unit", "long unit tests", _pytest(["tests/unit"], "release", *COMPUTING)),
    Step("native", "C++ tests at full length: release, ASan and UBSan, TSan", _native),
    Step("booted", "all unit and native tests on a machine that seems just booted", _booted),
    Step(
        "lab",
        "long tests in the lab, one more at a time than there are cores",
        _pytest([*LAB, *WAITING], "release", marked="nightly and not alone"),
        retried=True,
    ),
    Step(
        "lab-alone",
        "long tests in the lab that measure the machine",
        _pytest(LAB, "release", marked="nightly and alone"),
        retried=True,
    ),
    Step("attacks", "attacks that take long", _pytest(["tests/attack"], "release")),
    # Nothing is excused here: a test that needs an idle machine fails.
    Step("lab-loaded", f"the lab tier {LOADED_RUNS} times, one core busy with other work", _loaded),
    # One at a time: machines with daemons and a job starve beside others.
    Step(
        "vm",
        "all tests in virtual machines: those of one host go on from each other",
        _pytest(["tests/vm"], "release", marked="vm"),
        retried=True,
    ),
    Step("matrix", "fault matrix, release", _pytest([MATRIX], "release"), retried=True),
    Step("matrix-asan", "fault matrix, ASan and UBSan", _pytest([MATRIX], "asan"), retried=True),
    Step("matrix-tsan", "fault matrix, TSan", _pytest([MATRIX], "tsan"), retried=True),
]


def said(text: str) -> str:
    """The last line that says something, without colours and pytest's frame."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip("= ") for line in plain.splitlines() if line.strip("= ")]
    return lines[-1] if lines else ""


def run(step: Step, extra: list[str]) -> Result:
    """Run one step to its end; what it says goes to its log."""
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    logs = []
    report = LOGS / f"nightly-{step.name}.json"
    report.unlink(missing_ok=True)  # that of another run
    with ExitStack() as stack:
        children = []
        for number, (command, env) in enumerate(step.commands(extra)):
            path = LOGS / (f"nightly-{step.name}" + (f"-{number}" if number else "") + ".log")
            log = stack.enter_context(path.open("w"))
            children.append(
                subprocess.Popen(
                    command, cwd=REPO, env=os.environ | env | {run_report.ENV: str(report)},
                    stdout=log, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
            logs.append(path)
        codes = [child.wait() for child in children]
        if step.retried and codes == [FAILED_TESTS]:
            codes = [retry(step, report, extra, logs[0])]
    describe = ["git", "describe", "--always", "--dirty"]
    revision = subprocess.run(describe, cwd=REPO, capture_output=True, text=True, check=False)
    return Result(
        what=step.what,
        ok=not any(codes),
        said="; ".join(sorted({said(path.read_text(errors="replace")) for path in logs})),
        seconds=round(time.monotonic() - began),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        revision=revision.stdout.strip() or "unknown",
        machine=f"Linux {platform.release()}, {os.cpu_count()} cores",
    )


def retry(step: Step, report: Path, extra: list[str], log: Path) -> int:
    """Run what failed alone, and end the log with what came of the whole step; exit status."""
    ((_, env),) = step.commands(extra)
    command = [sys.executable, "-m", "lab.testrun.retry_alone", str(report)]
    with log.open("a") as file:
        done = subprocess.run(
            command, cwd=REPO, env=os.environ | env, stdout=file, stderr=subprocess.STDOUT,
            check=False,
        )  # fmt: skip
        found = RunReport.read(report)
        if found is not None:
            named = [f", FLAKY {test.test}" for test in found.flaky]
            named += [f", RETURNED {test.test}" for test in found.returned]
            file.write(f"{found.passed} passed, {len(found.failed)} failed{''.join(named)}\n")
    return done.returncode


def keep(name: str, result: Result, path: Path = RESULTS) -> None:
    """Write a step's result; those of other steps stay, in the order of `STEPS`."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[name] = asdict(result)
    order = [step.name for step in STEPS]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({n: kept[n] for n in order if n in kept}, indent=1) + "\n")


def chosen(only: str) -> Iterator[Step]:
    """The steps named, in their order; all when none is.

    Raises:
        typer.BadParameter: there is no such step.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {step.name for step in STEPS}
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"no step {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return (step for step in STEPS if not names or step.name in names)


app = typer.Typer(add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def nightly(
    context: typer.Context,
    only: Annotated[str, typer.Option(help="Steps, with commas between.")] = "",
) -> None:
    """Run the long tests; further arguments go to pytest.

    Example: sudo ./run test nightly --only matrix,matrix-tsan -k flap
    """
    console = Console()
    table = Table("step", "what", "result", "seconds")
    failed = False
    for step in list(chosen(only)):
        result = run(step, context.args)
        failed = failed or not result.ok
        # A selection of pytest's is no result of the step.
        if not context.args:
            keep(step.name, result)
        verdict = f"{'ok' if result.ok else 'FAILED'}: {result.said}"
        table.add_row(step.name, step.what, verdict, f"{result.seconds:.0f}")
        console.print(f"{step.name}: {verdict} ({result.seconds:.0f} s)", markup=False)
        if not result.ok:
            console.print(f"the log is build/log/nightly-{step.name}.log")
    console.print(table)
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
