"""Starts the process that owns a lab of the command line, and waits until it says how it went."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]


def start_owner(module: str, asked: object) -> tuple[int, dict[str, Any]]:
    """Start ``python -m module`` in a session of its own, with ``asked`` as JSON on its input.

    Returns:
        Its pid, and the one line of JSON that it printed, or ``{"ok": false, "error": …}`` with
        what it wrote before it died.
    """
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the owner keeps it open
    owner = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        owner.stdin.write(json.dumps(asked) + "\n")
        owner.stdin.close()
        reply = owner.stdout.readline()
    except KeyboardInterrupt:
        owner.terminate()  # it has a session of its own, so Ctrl-C did not reach it
        owner.wait()
        raise
    if reply:
        return owner.pid, json.loads(reply)
    errors.seek(0)
    return owner.pid, {"ok": False, "error": f"the owner process died:\n{errors.read()[-4000:]}"}
