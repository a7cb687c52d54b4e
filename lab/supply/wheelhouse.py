"""What a host is installed from, in one directory: ``./run package [DIRECTORY]``.

- wheels: fabricd's, and those of its dependencies as their makers published them;
- ``requirements.txt``: their versions and SHA-256, for ``pip install --require-hashes``;
- ``sniff.txt``: the same of scapy, which is no part of the product (GPL-2.0-only);
- ``fabricd-VERSION.cdx.json``: a bill of materials (SBOM, CycloneDX).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from lab.supply import bill, locked

REPO = Path(__file__).resolve().parents[2]
REQUIREMENTS = "requirements.txt"
_PATIENCE_S = 1800


class PipError(RuntimeError):
    """pip has failed."""


def pip(*args: str, log: Path) -> None:
    """Run pip in the repository; what it says is appended to ``log``.

    Raises:
        PipError: with the end of the log.
        subprocess.TimeoutExpired: after half an hour.
    """
    argv = [sys.executable, "-m", "pip", *args]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        done = subprocess.run(
            argv, cwd=REPO, stdout=out, stderr=subprocess.STDOUT, timeout=_PATIENCE_S
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-30:])
        raise PipError(f"pip {args[0]} failed; the whole log is {log}\n{tail}")


def download(out: Path, *, log: Path) -> None:
    """Fetch the dependencies' wheels for this machine's Python into ``out``; each has its hash."""
    lock = str(locked.FOLDER / "runtime.txt")
    pip("download", "-q", "--require-hashes", "-d", str(out), "-r", lock, log=log)


def build(out: Path, *settings: str, log: Path) -> None:
    """Build fabricd's wheel into ``out``, with what is installed beside this interpreter.

    Args:
        out: the directory.
        settings: of the build backend, such as ``cmake.define.NAME=VALUE``.
        log: as of `pip`.
    """
    argv = ["wheel", "-q", "--no-deps", "--no-build-isolation"]
    argv += [f"--config-settings={setting}" for setting in settings]
    pip(*argv, "-w", str(out), ".", log=log)


def describe(out: Path, *, now: datetime) -> None:
    """Write the hashes and the bill of the wheels that lie in ``out``.

    Raises:
        ValueError: a wheel there is not in the lock, or one of the lock is missing.
    """
    wheels = [bill.Wheel.read(path) for path in sorted(out.glob("*.whl"))]
    (ours,) = (wheel for wheel in wheels if wheel.name == "fabricd")
    others = [wheel for wheel in wheels if wheel is not ours]
    lock = locked.read("runtime")
    check(others, lock)
    text = (locked.FOLDER / "runtime.txt").read_text()
    pin = f"{ours.name}=={ours.version} \\\n    --hash=sha256:{ours.sha256}\n"
    (out / REQUIREMENTS).write_text(f"{text.rstrip()}\n{pin}")
    shutil.copy(locked.FOLDER / "sniff.txt", out)
    document = bill.document(ours, others, bill.compiled_in(), now=now)
    (out / f"fabricd-{ours.version}.cdx.json").write_text(document)


def check(wheels: list[bill.Wheel], lock: list[locked.Locked]) -> None:
    """Whether wheels are what a lock asks for on this machine, file by file.

    Raises:
        ValueError: they are not.
    """
    wanted = {package.name: package for package in lock if package.applies()}
    have = {wheel.name: wheel for wheel in wheels}
    if odd := sorted(wanted.keys() ^ have.keys()):
        raise ValueError(f"in one of wheels and lock alone: {', '.join(odd)}")
    for name, wheel in have.items():
        if wheel.sha256 not in wanted[name].hashes:
            raise ValueError(f"{wheel.path.name}: its SHA-256 is not in the lock")


def main() -> int:
    """Entry point; 2: the directory is in use, 1: pip has failed."""
    parser = argparse.ArgumentParser(prog="./run package", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=REPO / "dist")
    out = parser.parse_args().directory.absolute()
    if out.is_dir() and any(out.iterdir()):
        print(f"{out} is not empty", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    log = REPO / "build" / "log" / "package.log"
    log.unlink(missing_ok=True)
    try:
        download(out, log=log)
        build(out, log=log)
    except PipError as error:
        print(error, file=sys.stderr)
        return 1
    describe(out, now=datetime.now(UTC))
    print(f"{len(list(out.glob('*.whl')))} wheels, their hashes and a bill of materials in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
