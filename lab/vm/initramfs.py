"""A small initramfs: busybox, the few modules that the root needs, and files laid over the root.

A ``newc`` cpio archive written here (format: linux Documentation/driver-api/early-userspace/
buffer-format.rst). The overlay is how our agent and settings get into the image without being baked
into it: a change of them costs nothing.
"""

from __future__ import annotations

import stat
from pathlib import Path

# crc32c is ext4's checksum, asked for by name at run time and so in no dependency list.
ROOT_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")
# Newer kernels have it as a library.
_OPTIONAL = {"crc32c_generic"}

_INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /new
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
for m in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$m; done
n=0
until [ -b /dev/vda ] || [ $n -ge 100 ]; do /bin/busybox usleep 50000; n=$((n+1)); done
/bin/busybox mount -t ext4 /dev/vda /new || exec /bin/busybox sh
/bin/busybox cp -a /overlay/. /new/
/bin/busybox umount /proc
/bin/busybox mount --move /dev /new/dev
exec /bin/busybox switch_root /new /sbin/init
"""


def module_order(modules_dep: str, wanted: tuple[str, ...]) -> list[str]:
    """Paths to load, dependencies first, for module names ``wanted``.

    ``modules_dep`` is the text of depmod's file: ``path: dependency …`` where a module's
    dependencies are complete and to be loaded from the last to the first. Raises ``KeyError`` for a
    module that is not there.
    """
    table: dict[str, tuple[str, list[str]]] = {}
    for line in modules_dep.splitlines():
        path, _, rest = line.partition(":")
        name = path.rsplit("/", 1)[-1].split(".ko")[0].replace("-", "_")
        table[name] = (path, rest.split())
    order: list[str] = []
    for name in wanted:
        path, needs = table[name]
        for item in [*reversed(needs), path]:
            if item not in order:
                order.append(item)
    return order


def root_modules(modules_dep: str, modules_builtin: str) -> tuple[str, ...]:
    """Those of `ROOT_MODULES` that this kernel has as files.

    Raises ``KeyError`` for one that is neither a file nor built in.
    """

    def names(text: str) -> set[str]:
        files = (line.partition(":")[0].rsplit("/", 1)[-1] for line in text.splitlines())
        return {name.split(".ko")[0].replace("-", "_") for name in files}

    files, builtin = names(modules_dep), names(modules_builtin)
    for name in ROOT_MODULES:
        if name not in files | builtin | _OPTIONAL:
            raise KeyError(name)
    return tuple(name for name in ROOT_MODULES if name in files)


class Cpio:
    """Builds a ``newc`` archive in memory; directories come before what is in them."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._ino = 0
        self._seen: set[str] = set()

    def _entry(self, name: str, mode: int, data: bytes) -> None:
        self._ino += 1
        raw = name.encode() + b"\0"
        fields = (self._ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        self._out += b"070701" + b"".join(b"%08X" % f for f in fields) + raw
        self._out += b"\0" * (-len(self._out) % 4) + data
        self._out += b"\0" * (-len(self._out) % 4)

    def _parents(self, name: str) -> None:
        parts = name.split("/")[:-1]
        for i in range(1, len(parts) + 1):
            path = "/".join(parts[:i])
            if path not in self._seen:
                self._seen.add(path)
                self._entry(path, stat.S_IFDIR | 0o755, b"")

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Add a regular file ``name`` (no leading slash)."""
        self._parents(name)
        self._entry(name, stat.S_IFREG | mode, data)

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._parents(name)
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def finish(self) -> bytes:
        """The archive with its trailer."""
        self._entry("TRAILER!!!", 0, b"")
        return bytes(self._out)


def build(tree: Path, overlay: dict[str, bytes], links: dict[str, str]) -> bytes:
    """The archive for the system in ``tree``.

    ``overlay`` (path → contents) and ``links`` (path → target) are laid over the mounted root
    before init runs; paths have no leading slash; ``*.sh`` and ``*.py`` become executable.
    """
    (modules,) = (tree / "lib/modules").iterdir()
    dep = (modules / "modules.dep").read_text()
    order = module_order(dep, root_modules(dep, (modules / "modules.builtin").read_text()))
    cpio = Cpio()
    cpio.file("init", _INIT.encode(), 0o755)
    cpio.file("bin/busybox", (tree / "bin/busybox").read_bytes(), 0o755)
    for path in order:
        cpio.file(f"modules/{path.rsplit('/', 1)[-1]}", (modules / path).read_bytes())
    names = "\n".join(path.rsplit("/", 1)[-1] for path in order)
    cpio.file("modules/order", names.encode() + b"\n")
    for name, data in sorted(overlay.items()):
        cpio.file(f"overlay/{name}", data, 0o755 if name.endswith((".sh", ".py")) else 0o644)
    for name, target in sorted(links.items()):
        cpio.link(f"overlay/{name}", target)
    return cpio.finish()
