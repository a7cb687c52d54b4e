"""Virtual environments beside the project's: for what only a bench or some tests need.

Each has its lock in ``requirements/`` and lies under ``build``. torch is that of the project.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from lab.supply import locked

REPO = Path(__file__).resolve().parents[2]


class OwnVenvError(Exception):
    """A lock cannot be installed here. The text has what pip says."""


def own_python(lock: str) -> Path:
    """The interpreter that has what ``requirements/LOCK.txt`` names; makes it when there is none.

    Raises ``OwnVenvError``.
    """
    path = locked.FOLDER / f"{lock}.txt"
    home = REPO / "build" / lock
    stamp = home / hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    python = home / "bin" / "python"
    with (REPO / "build" / f"{lock}.lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not stamp.exists():
            _make(home, python, path)
            stamp.touch()
    return python


def _make(home: Path, python: Path, lock: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
    site = Path(subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip())  # fmt: skip
    import torch

    (site / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    pip = subprocess.run(
        # What comes as source asks for torch while it is built.
        [python, "-m", "pip", "install", "-q", "--require-hashes", "--no-deps",
         "--no-build-isolation", "-r", lock],
        check=False, capture_output=True, text=True, env=os.environ | {"DS_BUILD_OPS": "0"},
    )  # fmt: skip
    if pip.returncode:
        raise OwnVenvError(f"{lock.name} cannot be installed\n{pip.stderr[-2000:]}")
