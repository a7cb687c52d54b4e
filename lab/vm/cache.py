"""Build results under ``build/vm``, named by a hash of what went into them, made once.

A result is a directory that is either whole or absent: it is built beside its final name and
renamed into place. One builder at a time (``flock``); older results of the same kind go.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
ROOT = REPO / "build" / "vm"


def digest(*parts: str | bytes) -> str:
    """16 hex digits over ``parts``, each delimited by its length."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()[:16]


def files_digest(root: Path, patterns: tuple[str, ...]) -> str:
    """Digest of the names, contents and modes of the files under ``root`` that match."""
    parts: list[str | bytes] = []
    for path in sorted({p for pattern in patterns for p in root.glob(pattern) if p.is_file()}):
        if "__pycache__" in path.parts:
            continue
        parts += [str(path.relative_to(root)), f"{path.stat().st_mode:o}", path.read_bytes()]
    return digest(*parts)


def made_once(kind: str, key: str, build: Callable[[Path], None], *, keep: int = 1) -> Path:
    """The directory ``build/vm/<kind>-<key>``; ``build(tmp)`` fills it when it is missing.

    ``keep`` older results of the kind stay besides the new one. A failing ``build`` leaves nothing.
    """
    final = ROOT / f"{kind}-{key}"
    if final.is_dir():
        return final
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            return final
        tmp = ROOT / f".{kind}-{key}.tmp"
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir()
        try:
            build(tmp)
        except BaseException:
            shutil.rmtree(tmp, ignore_errors=True)
            raise
        tmp.replace(final)
        old = sorted(
            (p for p in ROOT.glob(f"{kind}-*") if p.is_dir() and p != final),
            key=lambda p: p.stat().st_mtime,
        )
        for path in old[: max(0, len(old) - keep)]:
            shutil.rmtree(path, ignore_errors=True)
    return final
