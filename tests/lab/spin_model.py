"""Runs spin over a Promela model of docs/design/model/ and reads its verifier's report."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[2] / "docs/design/model"
NEEDS_SPIN = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="needs spin and gcc (installed by ./run)",
)


def verify(
    model: Path, tmp_path: Path, defines: dict[str, int | None], *, liveness: bool = False
) -> str:
    """Searches all of the model's states and gives the verifier's report."""
    words = [
        f"-D{name}" if value is None else f"-D{name}={value}" for name, value in defines.items()
    ]
    if liveness:
        words.append("-DLIVENESS")
    subprocess.run(["spin", "-a", *words, str(model)], cwd=tmp_path, check=True, timeout=60)
    mode = ["-DNFAIR=5"] if liveness else ["-DSAFETY"]
    # NOREDUCE: every interleaving is looked at, whatever partial order reduction may think.
    # Most of the time goes into compiling; where a violation is expected, it comes early.
    mutated = any(name.startswith("MUT_") for name in defines)
    optimize = "-O0" if mutated else "-O1"
    built = ["gcc", optimize, "-w", "-DNOREDUCE", "-DMEMLIM=4096", *mode, "-o", "pan", "pan.c"]
    subprocess.run(built, cwd=tmp_path, check=True, timeout=110)
    words = ["./pan", "-m1000000", "-w22", *(["-a", "-f"] if liveness else [])]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


def assert_holds(report: str, *, at_least: int) -> None:
    """Nothing found, nothing cut short, and not fewer states than there were once."""
    assert "errors: 0" in report, report
    for cut_short in ("Search not completed", "search depth too small", "out of memory"):
        assert cut_short not in report, report
    stored = re.search(r"^\s*([0-9.e+]+) states, stored", report, re.MULTILINE)
    assert stored, report
    assert float(stored.group(1)) >= at_least, report
