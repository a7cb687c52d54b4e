"""The base image with a newer kernel: the backports of the next Debian release.

From Linux 7.1 on soft-RoCE works inside network namespaces (``rxe_ns``), so that one machine holds
a whole RDMA cluster. The userspace stays that of the base image. The packages come through an apt
directory of their own; nothing of them is installed on this machine.
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
from pathlib import Path

from lab.vm import apt, cache
from lab.vm.apt import PATIENCE_S, PrivateApt
from lab.vm.image import SIZE_MIB, Image, base, make_ext4

NEXT = {"bookworm": "trixie"}
"""Release of the newer kernel by this machine's release."""
META = "linux-image-amd64"
PARTS = ("image", "binary", "modules", "base")
"""Packages ``linux-<part>-<version>``; which of them exist differs from version to version."""
# What a virtual machine and RDMA need; all of it takes four times as long to unpack.
KEPT = (
    *("arch", "block", "crypto", "fs/autofs", "fs/ext4", "fs/jbd2", "fs/fuse", "lib", "net"),
    *(f"drivers/{name}" for name in ("block", "char", "infiniband", "ptp", "virtio")),
    *(f"drivers/net/{name}" for name in ("bonding", "ethernet/intel", "phy", "mdio")),
)
KEPT_FILES = ("drivers/net/*.ko*", "fs/*.ko*")


def version_of(record: str) -> str:
    """Version of the kernel that a metapackage's record depends on, as in ``uname -r``.

    Raises ``ValueError`` when it depends on none.
    """
    found = re.search(r"^Depends:.*\blinux-image-(\d[^\s,(]*)", record, re.MULTILINE)
    if not found:
        raise ValueError(f"{META} depends on no kernel: {record[:400]}")
    return found[1]


def newer() -> Image:
    """The base image with that kernel; built when it is not cached (120 MB from the mirror)."""
    system = base()
    here = apt.codename(Path("/etc/os-release").read_text())
    suite = f"{NEXT.get(here, here)}-backports"
    recipe = json.dumps([system.root.parent.name, suite, KEPT, KEPT_FILES, SIZE_MIB, 1])
    path = cache.made_once(
        "newer", cache.digest(recipe), lambda out: _build(out, system, here, suite), keep=0
    )
    return Image(root=path / "root.ext4", kernel=path / "vmlinuz", tree=path / "tree")


def _build(out: Path, system: Image, here: str, suite: str) -> None:
    unpacked = out / "unpacked"
    source = PrivateApt(out / "apt", *apt.other_suite(Path("/etc/apt"), here, suite))
    version = version_of(source.show(META))
    known = source.known("linux-")
    names = [f"linux-{part}-{version}" for part in PARTS]
    source.unpack([name for name in names if name in known], unpacked)
    shutil.rmtree(out / "apt")
    (image,) = [p for p in unpacked.glob("**/vmlinuz*") if p.is_file()]
    shutil.move(image, out / "vmlinuz")
    # Links instead of copies: only the modules' directory differs, and that one is replaced.
    tree = out / "tree"
    subprocess.run(["cp", "-al", system.tree, tree], check=True, timeout=PATIENCE_S)
    target = tree / "usr/lib/modules"
    shutil.rmtree(target)
    (found,) = [p for p in unpacked.glob("**/lib/modules/*") if p.name == version]
    _keep_modules(found, target / version)
    shutil.rmtree(unpacked)
    subprocess.run(["depmod", "-b", tree, version], check=True, timeout=PATIENCE_S)
    make_ext4(tree, out / "root.ext4", SIZE_MIB, "root")


def _keep_modules(source: Path, target: Path) -> None:
    """Copy what `KEPT` names, decompressed: under emulation that costs a boot seconds."""
    kernel = source / "kernel"
    chosen = [path for name in KEPT for path in (kernel / name).glob("**/*.ko*")]
    chosen += [path for pattern in KEPT_FILES for path in kernel.glob(pattern)]
    for path in chosen:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        if path.suffix == ".xz":
            copy, data = copy.with_suffix(""), lzma.decompress(data)
        copy.write_bytes(data)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
