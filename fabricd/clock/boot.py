"""Of which boot a clock page is, and how long the host had slept by then. Pure but for the file.

The page lies over CLOCK_MONOTONIC_RAW, which begins anew at each boot and stands still while the
host sleeps. A service notices sleep while it runs; of what happened between two services only a
file tells, which lies beside the page: the run directory may outlive a boot, too.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from clocksync.page.clock_page import ClockError, Line, State
from telemetry.service import durable

NAME: Final = "clock-boot.json"
MOST_BYTES: Final = 4096
MOST_TEXT: Final = 64
READ_NS: Final = 10_000
"""Two looks at how long the host has slept differ by less; no host sleeps for so short."""


class BootError(Exception):
    """These bytes do not say it; the text says why."""


class Boot(NamedTuple):
    """What the raw clock counts from, and what it left out."""

    boot: str
    """The kernel's boot id; empty: not known."""
    asleep_ns: int
    """CLOCK_BOOTTIME less CLOCK_MONOTONIC: how long the host has slept since it was booted."""


def still(line: Line, then: Boot | None, now: Boot, now_ns: int) -> Line | None:
    """What an earlier service's line is worth now.

    Args:
        line: as it was published.
        then: as of that service; None: it did not say, and the line is taken as it is.
        now: as of this moment.
        now_ns: the clock that the line lies over.

    Returns:
        None: it is of another boot, or of none that is known, or the host slept for longer than its
        bound can absorb.
    """
    if then is None or line.state is State.UNSYNCED:
        return line
    slept = now.asleep_ns - then.asleep_ns
    if not now.boot or then.boot != now.boot or slept <= -READ_NS:
        return None
    if slept < READ_NS:
        return line
    try:
        bound = line.at(now_ns).bound_ns
    except ClockError:
        return None
    return replace(line, bound_ns=line.bound_ns + slept) if slept <= bound else None


def this_boot(asleep_ns: int, proc: Path = Path("/proc")) -> Boot:
    """This boot's; ``asleep_ns``: for how long the host has slept in it."""
    try:
        found = (proc / "sys/kernel/random/boot_id").read_text(errors="replace")
    except OSError:
        found = ""
    return Boot(found.strip()[:MOST_TEXT], asleep_ns)


def parse(data: bytes) -> Boot:
    """What is stored.

    Raises:
        BootError: it is none.
    """
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BootError("not JSON") from error
    if not isinstance(said, dict) or said.keys() != set(Boot._fields):
        raise BootError("not the fields of a boot")
    boot, asleep = said["boot"], said["asleep_ns"]
    if not isinstance(boot, str) or len(boot) > MOST_TEXT:
        raise BootError("boot is no name")
    if not isinstance(asleep, int) or isinstance(asleep, bool):
        raise BootError("asleep_ns is no number")
    return Boot(boot, asleep)


def load(directory: Path) -> Boot | None:
    """As of the page in that directory; None: its service was of a version that did not say.

    Raises:
        BootError: the file is damaged.
        OSError: it cannot be read.
    """
    try:
        data = durable.read(directory / NAME, MOST_BYTES)
    except ValueError as error:
        raise BootError(str(error)) from error
    return None if data is None else parse(data)


def store(directory: Path, boot: Boot) -> None:
    """Keep it, durably.

    Raises:
        OSError: it is not kept.
    """
    durable.replace_text(directory / NAME, json.dumps(boot._asdict()) + "\n")
