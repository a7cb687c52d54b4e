"""A memory limit around this process and all that it starts from then on, and a hog that fills it.

Not the machine's memory: others work on it, and the kernel would end whatever is largest. Inside
the limit the hog holds anonymous memory and reads a file that does not fit beside it, so that every
allocation there has to reclaim first. cgroup v1 and v2.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.detect.live_lab import running

MIB = 1 << 20
HOG = 256 * MIB
ROOM = 48 * MIB
FILE = 256 * MIB
_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group of its own."""

    path: Path
    version: int

    def usage(self) -> int:
        """Bytes charged to it."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return int((self.path / name).read_text())

    def limit(self, size: int) -> None:
        """At most so many bytes from now on; -1: no limit."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        (self.path / name).write_text("max" if size < 0 and self.version == 2 else str(size))

    def at_limit(self) -> int:
        """How often an allocation met the limit and had to reclaim."""
        if self.version == 1:
            return int((self.path / "memory.failcnt").read_text())
        events = dict(
            line.split() for line in (self.path / "memory.events").read_text().splitlines()
        )
        return int(events["max"])

    @contextmanager
    def pressure(self) -> Iterator[None]:
        """Fill it to its limit until the block ends."""
        with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
            file.truncate(0)
            block = os.urandom(MIB)
            for _ in range(FILE // MIB):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            hog = ["stress-ng", "--vm", "1", "--vm-bytes", str(HOG), "--vm-keep", "--quiet"]
            read = ["sh", "-c", 'while :; do cat "$1" >/dev/null; sleep 0.2; done', "sh", file.name]
            with running(hog):
                time.sleep(2.0)
                self.limit(self.usage() - FILE + ROOM if self.usage() > FILE + ROOM else -1)
                with running(read):
                    try:
                        yield
                    finally:
                        self.limit(-1)

    def stalled_text(self) -> str:
        """For a row's note."""
        return f"{self.at_limit()} allocations met the memory limit"


def own_group() -> MemoryGroup:
    """Where a group for this process can be made.

    Raises:
        RuntimeError: there is no memory controller.
    """
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return MemoryGroup(_ROOT / "memory" / path.lstrip("/"), 1)
    for number, _, path in lines:
        if number == "0" and (_ROOT / "cgroup.controllers").exists():
            return MemoryGroup(_ROOT / path.lstrip("/"), 2)
    raise RuntimeError("no memory controller to put pressure on the daemons with")


@contextmanager
def squeeze() -> Iterator[MemoryGroup]:
    """This process and its children live in a memory group of their own until the block ends."""
    outer = own_group()
    inner = MemoryGroup(outer.path / f"fabric-bench-{os.getpid()}", outer.version)
    inner.path.mkdir()
    try:
        if outer.version == 2:
            (outer.path / "cgroup.subtree_control").write_text("+memory")
        (inner.path / "cgroup.procs").write_text(str(os.getpid()))
        yield inner
    finally:
        (outer.path / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(50):
            try:
                inner.path.rmdir()
                break
            except OSError:  # Its last processes are still ending.
                time.sleep(0.1)
