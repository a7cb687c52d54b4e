"""One window of the failure forecast, in a process of its own: ``python -m fabricd.predict.child``.

NumPy would cost the daemon 25 MB for ever; this takes a third of a second every five minutes, and
what goes wrong here is nothing but a missing forecast. The state lies in a file that is replaced
only by a whole one.

Standard input, JSON: ``state`` (path), ``names``, ``modules`` (what is plugged, by link: another
module begins anew), ``window`` (`fabricd.predict.gather.Rows`, null for NaN), ``rules`` (``alarm``,
``window_s``). Standard output: ``links`` (name → forecast) and ``notes``, what was not usable.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from fabricd.predict.risk import Predictor, Rules, Window
from telemetry.service import durable

MAX_STATE = 16 * 2**20


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Take one window.

    Raises:
        KeyError, TypeError, ValueError: not a request.
    """
    notes: list[str] = []
    file = Path(request["state"])
    wanted = request["rules"]
    alarm, usual = float(wanted["alarm"]), Rules()
    rules = Rules(
        window_s=int(wanted["window_s"]), alarm=alarm, clear=min(usual.clear, 0.6 * alarm)
    )
    stored = _load(file, notes)
    links: dict[str, Any] = {}
    for at, name in enumerate(request["names"]):
        window = Window.of({key: [row[at]] for key, row in request["window"].items()})
        module = str(request["modules"].get(name, ""))
        predictor = Predictor([name], rules)
        old = stored.get(name)
        # A cage that is empty, or not read, for a while forgets nothing; another module does.
        if old and (not module or old.get("module", "") in ("", module)):
            try:
                predictor.restore(old["predictor"])
            except (KeyError, TypeError, ValueError) as error:
                notes.append(f"{name}: begun anew: {error}")
        else:
            old = None
        predictor.step(window)
        left = float(predictor.left_s[0])
        links[name] = {
            "risk": round(float(predictor.risk[0]), 4),
            "named": bool(predictor.named[0]),
            "left_s": left if math.isfinite(left) else None,
            "evidence": predictor.evidence(0),
        }
        kept = module or (old or {}).get("module", "")
        stored[name] = {"module": kept, "predictor": predictor.save()}
    _store(file, {name: stored[name] for name in request["names"]}, notes)
    return {"links": links, "notes": notes}


def _load(file: Path, notes: list[str]) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            document = json.loads(stream.read(MAX_STATE))
        if not isinstance(document, dict):
            raise ValueError("not an object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        notes.append(f"{file.name}: begun anew: {error}")
        return {}
    return {name: each for name, each in document.items() if isinstance(each, dict)}


def _store(file: Path, document: dict[str, Any], notes: list[str]) -> None:
    try:
        durable.replace_text(file, json.dumps(document, allow_nan=False))
    except OSError as error:
        notes.append(f"{file.name}: not stored: {error.strerror}")


def main() -> int:
    """Serve one request; 1 when it is none."""
    with contextlib.suppress(OSError):  # A system call filter may forbid it: then as the daemon.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.nice(19)
    try:
        answer = run(json.loads(sys.stdin.buffer.read(MAX_STATE)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        sys.stderr.write(f"not a request: {error!r}\n")
        return 1
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
