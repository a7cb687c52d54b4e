"""The product as an operator installs it, offline: a wheelhouse, then a venv under /opt/fabricd.

`lab.supply.wheelhouse` makes the directory, as ``./run package`` does. The base image's own Python
makes ``/opt/fabricd`` from it alone (``--no-index``) and by its hashes, in a chroot with a mount
namespace of its own. The result is an ext4 file that a machine mounts at /opt/fabricd.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from lab.supply import locked, wheelhouse
from lab.vm import cache
from lab.vm.apt import PATIENCE_S
from lab.vm.image import Image, make_ext4

PREFIX = "/opt/fabricd"
SIZE_MIB = 400

# $1 tree, $2 wheelhouse, $3 prefix to fill. In a mount namespace, so nothing is left mounted.
_INSTALL = f"""
set -e
mkdir -p "$1{PREFIX}" "$1/mnt"
mount --bind "$3" "$1{PREFIX}"
mount --bind -o ro "$2" "$1/mnt"
mount -t tmpfs tmp "$1/tmp"
mount -t devtmpfs dev "$1/dev"
exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp sh -ec '
  /usr/bin/python3 -m venv --system-site-packages {PREFIX}
  {PREFIX}/bin/pip install -q --disable-pip-version-check --no-index --find-links /mnt \\
    --require-hashes -r /mnt/{wheelhouse.REQUIREMENTS}
'
"""


def wheels() -> Path:
    """Directory with the product's wheel and those of its dependencies, built when missing.

    Dependencies are keyed by the lock, the product by every file that goes into it.
    """
    lock = (locked.FOLDER / "runtime.txt").read_bytes()
    log = cache.ROOT / "pip.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")

    def fetch(out: Path) -> None:
        wheelhouse.download(out, log=log)

    def build(out: Path) -> None:
        # As the release build was compiled, whose objects are in the cache: ccache goes by the
        # compiler's name, too.
        settings = ("cmake.define.FABRIC_CCACHE=ON", "cmake.define.CMAKE_CXX_COMPILER=c++")
        wheelhouse.build(out, *settings, log=log)
        for wheel in dependencies.glob("*.whl"):
            shutil.copy2(wheel, out)
        wheelhouse.describe(out, now=datetime.now(UTC))

    dependencies = cache.made_once("wheels", cache.digest(lock, sys.version), fetch, keep=0)
    return cache.made_once("wheelhouse", cache.digest(source_digest(), sys.version), build, keep=0)


def source_digest() -> str:
    """Digest of every file that the wheel is made of."""
    patterns = ["pyproject.toml", "README.md", "LICENSE", "CMakeLists.txt", "cmake/*"]
    patterns += ["requirements/*.txt", "lab/supply/*.py"]  # hashes, and the bill beside the wheel
    packages = ("fabricd", "telemetry", "clocksync", "compute", "fabric_train")
    patterns += [f"{p}/**/*" for p in (*packages, "systemd")]
    for part in ("prober", "nccl_plugin"):
        patterns += [f"{part}/**/*.{ext}" for ext in ("cpp", "h", "c", "txt", "map")]
    return cache.files_digest(cache.REPO, tuple(patterns))


def install(base: Image, house: Path, prefix: Path) -> None:
    """Fill ``prefix`` with what belongs at ``/opt/fabricd``, by the Python of ``base``."""
    subprocess.run(["unshare", "--mount", "--propagation", "private",
                    "sh", "-ec", _INSTALL, "sh", str(base.tree), str(house), str(prefix)],
                   check=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S,
                   env={"PATH": os.environ["PATH"]})  # fmt: skip


def disk(base: Image) -> Path:
    """The ext4 file with the installed product, built when its sources have changed."""

    def build(out: Path) -> None:
        prefix = out / "prefix"
        prefix.mkdir()
        install(base, house, prefix)
        make_ext4(prefix, out / "fabricd.ext4", SIZE_MIB, "fabricd")
        shutil.rmtree(prefix)

    house = wheels()
    key = cache.digest(house.name, base.root.parent.name, _INSTALL)
    return cache.made_once("payload", key, build, keep=0) / "fabricd.ext4"
