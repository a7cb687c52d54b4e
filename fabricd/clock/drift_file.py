"""What outlives a boot: the rate of fabric time over this host's raw clock. Pure but for the file.

A crystal is off by some 10 ppm, and by nearly the same tomorrow; CLOCK_MONOTONIC_RAW is that
crystal through a factor that the kernel has. Where the processor says what it runs at (CPUID 15H:
``tsc_known_freq``), or the clock is an ARM's, the factor is the same after each boot. Else the
kernel measures the TSC against the PM timer or HPET at each boot (arch/x86/kernel/tsc.c,
tsc_refine_calibration_work), and comes out some ppm elsewhere: then what was learnt says little.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from telemetry.service import durable

NAME: Final = "clock-rate.json"
MOST_BYTES: Final = 4096
MOST_RATE: Final = 500e-6
MOST_TEXT: Final = 64
DAY_S: Final = 86_400.0
SAME_BOOT: Final = 2e-8
KNOWN: Final = 2e-7
"""Another boot, of a clock whose factor stays: another temperature, of which a plain crystal makes
0.1 ppm in a few degrees."""
MEASURED: Final = 1e-5
"""Another boot's calibration; the TSC's are some ppm apart."""
AGING: Final = 3e-9
"""A day; 1 ppm a year."""


class ModelError(Exception):
    """These bytes are no model; the text says why."""


@dataclass(frozen=True, slots=True)
class RawClock:
    """What the raw clock is made of."""

    boot: str
    """The kernel's boot id; empty: not known."""
    steady: bool
    """Whether the next boot's raw clock has the same rate."""


@dataclass(frozen=True, slots=True)
class Model:
    """A rate that was learnt."""

    rate: float
    """Of fabric time over the raw clock, less one."""
    learnt_s: float
    """When, by the wall clock."""
    boot: str
    steady: bool

    def error(self, now: RawClock, wall_s: float) -> float:
        """How far off it may be by now; grows with its age."""
        age = max(0.0, wall_s - self.learnt_s) / DAY_S
        steady = self.steady and now.steady
        same = bool(now.boot) and self.boot == now.boot
        base = SAME_BOOT if same else KNOWN if steady else MEASURED
        return base + AGING * age

    def start(self, now: RawClock, wall_s: float) -> float:
        """The rate to begin with: none at all where that is the better guess."""
        return self.rate if abs(self.rate) > self.error(now, wall_s) else 0.0


def parse(data: bytes) -> Model:
    """A stored model.

    Raises:
        ModelError: it is none.
    """
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelError("not JSON") from error
    if not isinstance(said, dict) or said.keys() != set(Model.__dataclass_fields__):
        raise ModelError("not the fields of a model")
    for name in ("rate", "learnt_s"):
        value = said[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or abs(value) > 1e12 or not math.isfinite(value):
            raise ModelError(f"{name} is no number")
    if abs(said["rate"]) > MOST_RATE:
        raise ModelError("a rate that no clock has")
    if not isinstance(said["boot"], str) or len(said["boot"]) > MOST_TEXT:
        raise ModelError("boot is no name")
    if not isinstance(said["steady"], bool):
        raise ModelError("steady is neither true nor false")
    return Model(float(said["rate"]), float(said["learnt_s"]), said["boot"], said["steady"])


def load(directory: Path) -> Model | None:
    """The model of an earlier life; None: there is none.

    Raises:
        ModelError: the file is damaged.
        OSError: it cannot be read.
    """
    try:
        data = durable.read(directory / NAME, MOST_BYTES)
    except ValueError as error:
        raise ModelError(str(error)) from error
    return None if data is None else parse(data)


def store(directory: Path, model: Model) -> None:
    """Keep it, durably.

    Raises:
        OSError: it is not kept.
    """
    durable.replace_text(directory / NAME, json.dumps(asdict(model)) + "\n")


def raw_clock(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> RawClock:
    """This boot's; what cannot be read is taken for the worse."""

    def text(path: Path) -> str:
        try:
            return path.read_text(errors="replace")
        except OSError:
            return ""

    boot = text(proc / "sys/kernel/random/boot_id").strip()[:MOST_TEXT]
    source = text(sys / "devices/system/clocksource/clocksource0/current_clocksource").strip()
    known = source == "tsc" and "tsc_known_freq" in text(proc / "cpuinfo").split()
    return RawClock(boot, known or source == "arch_sys_counter")
