"""How little strangers can do: exposure of the units, parsers under fuzzing."""

from __future__ import annotations

import json
import re
import subprocess

from bench.report import Row
from lab.fuzz import runner
from lab.node import REPO

LONG_RUN = 10_000_000
PARSERS = (*runner.NATIVE, *runner.TARGETS)


def hardening(*, quick: bool) -> list[Row]:
    """Exposure by ``systemd-analyze security``, offline: of the unit files as they are."""
    del quick
    rows = []
    for unit, most in (("fabricd", 2.5), ("fabric-prober", 3.5)):
        file = REPO / "systemd" / f"{unit}.service"
        said = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--no-pager", str(file)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said.stdout)
        if not found:
            raise RuntimeError(f"systemd-analyze security {file}: {said.stdout}{said.stderr}")
        note = "systemd-analyze security --offline"
        rows.append(Row(f"{unit}.service: exposure", most, float(found[1]), "", note=note))
    return rows


def fuzzing(*, quick: bool) -> list[Row]:
    """A run of every parser now, and what the long runs have reached."""
    inputs = 20_000 if quick else 200_000
    results = runner.run(PARSERS, inputs)
    findings = [result for result in results if result.finding]
    unbuilt = [result for result in results if result.error]
    stored = json.loads(runner.RESULTS.read_text()) if runner.RESULTS.exists() else {}
    long = {
        name: stored[name]["inputs"] if name in stored and not stored[name]["finding"] else 0
        for name in PARSERS
    }
    least = min(long, key=long.__getitem__)
    short = [f"{name} {count}" for name, count in long.items() if count < LONG_RUN]
    return [
        Row(
            "parsers under fuzzing, this run: parsers not fuzzed",
            0,
            len(unbuilt),
            "",
            better="equal",
            note="; ".join(f"{result.target}: {result.error[-80:]}" for result in unbuilt),
        ),
        Row(
            "parsers under fuzzing, this run: findings",
            0,
            len(findings),
            "",
            better="equal",
            note=f"{inputs} inputs into each of {len(results) - len(unbuilt)} parsers"
            + "".join(f"; {result.target}: {result.finding[:80]}" for result in findings),
        ),
        Row(
            "parsers under fuzzing, long runs: inputs of the parser that had fewest",
            LONG_RUN,
            long[least],
            "",
            better="higher",
            note=f"{least}; tests/results/fuzz.json has revision and date of each"
            + (f"; fewer than asked: {', '.join(short)}" if short else ""),
        ),
    ]
