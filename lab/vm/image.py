"""The base image: Debian 12 with systemd, a stock kernel and rdma-core, as an ext4 file.

``mmdebstrap`` fills a tree, ``mke2fs -d`` turns it into a file system. The tree is kept: the
payload is installed by the tree's own Python, the initramfs takes its modules from it. No code of
ours is in it, so the key is the recipe and the host's release alone.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.vm import apt, cache
from lab.vm.apt import PATIENCE_S

PACKAGES = (
    "busybox-static",
    "dbus",
    "ethtool",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "linux-image-amd64",
    "nftables",
    "perftest",
    "procps",
    "python3",
    "python3-pyverbs",
    "python3-venv",
    "rdma-core",
    "systemd-sysv",
    "udev",
)
# A virtual machine has none of this hardware; without it the tree is half as large.
EXCLUDED = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/locale/*",
    "/lib/modules/*/kernel/drivers/gpu/*",
    "/lib/modules/*/kernel/drivers/media/*",
    "/lib/modules/*/kernel/drivers/net/wireless/*",
    "/lib/modules/*/kernel/drivers/scsi/*",
    "/lib/modules/*/kernel/sound/*",
)
SIZE_MIB = 1024


@dataclass(frozen=True, slots=True)
class Image:
    """Paths of a built base image."""

    root: Path
    """The ext4 file; never written to (machines use ``snapshot=on``)."""
    kernel: Path
    tree: Path
    """The same system as a directory."""


def bootstrap(
    tree: Path, release: str, scratch: Path, packages: tuple[str, ...], *, sealed: bool
) -> None:
    """Fill ``tree`` with Debian ``release``: apt, what is essential, and ``packages``.

    ``sealed`` leaves out documentation and hardware drivers, and removes this machine's apt
    transport settings and credentials afterwards; unsealed, the tree's apt can go on using them.
    Another release than this machine's comes from the same mirrors.
    Raises ``RuntimeError`` with the end of mmdebstrap's log.
    """
    here = apt.codename(Path("/etc/os-release").read_text())
    lines, stanzas = apt.debian_sources(Path("/etc/apt"), here)
    sources = []
    for name, found in (("host.list", lines), ("host.sources", stanzas)):
        if found:
            (scratch / name).write_text(apt.of_release(found, here, release))
            sources.append(str(scratch / name))
    # What it mounts on the tree (/proc, /sys, /dev) goes with it, even when it is killed: removing
    # the rest of such a tree would else remove this machine's devices.
    argv = ["unshare", "--mount", "--propagation", "private", "--"]
    argv += ["mmdebstrap", "--mode=root", "--variant=minbase", "--skip=output/dev"]
    argv += [f"--aptopt={line}" for line in apt.carried_options()]
    argv += [f"--include={','.join(packages)}"] if packages else []
    if any(Path("/etc/apt/auth.conf.d").glob("*")) or Path("/etc/apt/auth.conf").exists():
        argv.append('--setup-hook=cp -a /etc/apt/auth.conf* "$1/etc/apt/"')
    if sealed:
        argv += ['--aptopt=APT::Install-Recommends "false"']
        argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDED]
        settings = '"$1"/etc/apt/auth.conf* "$1"/etc/apt/apt.conf.d/99mmdebstrap'
        argv.append(f"--customize-hook=rm -rf {settings}")
    argv += [release, str(tree), *sources]
    log = cache.ROOT / "mmdebstrap.log"
    # INITRD=No: our own initramfs is 50 times smaller, which counts under emulation.
    env = {**os.environ, "INITRD": "No"}
    with log.open("w") as out:
        done = subprocess.run(
            argv, stdout=out, stderr=subprocess.STDOUT, env=env, timeout=PATIENCE_S
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-20:])
        raise RuntimeError(f"mmdebstrap failed ({done.returncode}); the whole log is {log}\n{tail}")


def make_ext4(tree: Path, image: Path, size_mib: int, label: str) -> None:
    """Write ``tree`` as a sparse ext4 file of ``size_mib``; raises ``CalledProcessError``."""
    # Without a journal and lazy initialisation: the file is thrown away, never recovered.
    subprocess.run(
        [
            "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "lazy_itable_init=0",
            "-L", label, "-d", str(tree), str(image), f"{size_mib}M",
        ],
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=PATIENCE_S,
    )  # fmt: skip


def _build(out: Path, release: str) -> None:
    tree = out / "tree"
    bootstrap(tree, release, out, PACKAGES, sealed=True)
    # A sealed image: every boot is a first boot with an empty machine-id, no password needed.
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/fstab").write_text("")
    kernels = sorted((tree / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise RuntimeError(f"expected one kernel in the image, found {kernels}")
    kernels[0].rename(out / "vmlinuz")
    make_ext4(tree, out / "root.ext4", SIZE_MIB, "root")


def base() -> Image:
    """The base image, built when it is not cached (about a minute, and 120 MB from the mirror)."""
    release = apt.codename(Path("/etc/os-release").read_text())
    recipe = json.dumps([release, PACKAGES, EXCLUDED, SIZE_MIB, 1])
    path = cache.made_once("base", cache.digest(recipe), lambda out: _build(out, release), keep=0)
    return Image(root=path / "root.ext4", kernel=path / "vmlinuz", tree=path / "tree")
