"""Files by which an operator of this management host says what is to be done.

The promoted mode, the stop file, and the hosts to be drained.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from compute.core import Mode
from telemetry.service import durable

MODES: tuple[Mode, ...] = get_args(Mode)
MAX_BYTES = 4096
DRAINED_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")


def read_mode(path: Path) -> tuple[Mode, str]:
    """The promoted mode, and why it is ``observe`` where the file cannot be used."""
    try:
        content = durable.read(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        return "observe", f"{path}: {error}"
    if content is None:
        return "observe", ""
    text = content.decode(errors="replace").strip()
    for mode in MODES:
        if text == mode:
            return mode, ""
    return "observe", f'{path}: "{text[:32]}"; allowed: {", ".join(MODES)}'


def write_mode(path: Path, mode: Mode) -> None:
    """Promote or demote, durably. Raises ``OSError``."""
    durable.replace_text(path, f"{mode}\n")


def read_stop(path: Path) -> tuple[bool, str]:
    """Whether the stop file is there, and its first line as the reason.

    A file that cannot be looked at counts as there: somebody wanted to say something.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False, ""
    except OSError as error:
        return True, f"{path}: {error.strerror}"
    try:
        content = durable.read(path, MAX_BYTES) or b""
    except (OSError, ValueError):
        content = b""
    lines = content.decode(errors="replace").splitlines()
    return True, (lines[0].strip()[:500] if lines else "") or f"{path} is there"


def write_stop(path: Path, reason: str) -> None:
    """Stop this fabric-compute. Raises ``OSError``."""
    durable.replace_text(path, f"{reason or 'stopped by an operator'}\n")


def read_drained(path: Path) -> dict[str, str]:
    """Hosts to be drained → the host that shall take over, ``""``: any.

    Raises:
        ValueError: the file makes no sense; what was known stays.
        OSError: it cannot be read.
    """
    data = _read_hosts(path)
    for host, to in data.items():
        if not is_host(host) or (to != "" and not is_host(to)):
            raise ValueError(f"{host!r:.80}: {to!r:.80}; expected a host and its replacement")
    return data


def _read_hosts(path: Path) -> dict[str, Any]:
    """The JSON object of a file, empty where there is none. Raises as its callers do."""
    content = durable.read(path, DRAINED_BYTES)
    if content is None:
        return {}
    try:
        data = json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("not a JSON object of hosts")
    return data


def is_host(name: object) -> bool:
    """Whether it can be the name of a host."""
    return isinstance(name, str) and _NAME.match(name) is not None


def write_drained(path: Path, drained: dict[str, str]) -> None:
    """Replace the hosts to be drained, durably. Raises ``OSError``."""
    durable.replace_text(path, json.dumps(drained, indent=1, sort_keys=True) + "\n")


CONFIRMED_S = 600.0
"""What is confirmed is of the host as it was then: older words are dropped."""


@dataclass(frozen=True)
class Confirmed:
    """What an operator knows of a host. ``at``: seconds since 1970 when that was said."""

    what: Literal["lost", "repaired", "broken"]
    at: float
    reason: str = ""
    ranks: tuple[int, ...] = ()
    """Of a host that is broken for these ranks alone."""


def read_confirmed(path: Path) -> dict[str, Confirmed]:
    """Host → what an operator knows of it, as far as it is not taken yet.

    Raises:
        ValueError: the file makes no sense.
        OSError: it cannot be read.
    """
    found = {}
    for host, said in _read_hosts(path).items():
        match said:
            case {
                "what": "lost" | "repaired" as what, "at": float() | int() as at,
                "reason": str(reason),
            } if is_host(host) and _is_time(at):  # fmt: skip
                found[host] = Confirmed(what, float(at), reason[:500])
            case {
                "what": "broken", "at": float() | int() as at, "reason": str(reason),
                "ranks": [_, *_] as ranks,
            } if is_host(host) and _is_time(at) and all(map(_is_rank, ranks)):  # fmt: skip
                found[host] = Confirmed("broken", float(at), reason[:500], tuple(ranks))
            case _:
                raise ValueError(f"{host!r:.80}: {said!r:.80}; expected what, at and reason")
    return found


def _is_time(value: float) -> bool:
    """Whether it can be seconds since 1970: a JSON number may be NaN, or of any size."""
    return not isinstance(value, bool) and 0 <= value < 1 << 40


def _is_rank(value: object) -> bool:
    return type(value) is int and value >= 0


def write_confirmed(path: Path, confirmed: dict[str, Confirmed]) -> None:
    """Replace what is confirmed and not taken yet, durably. Raises ``OSError``."""
    data = {host: asdict(one) for host, one in confirmed.items()}
    durable.replace_text(path, json.dumps(data, indent=1, sort_keys=True) + "\n")
