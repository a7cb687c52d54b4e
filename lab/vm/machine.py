"""One virtual machine: boot, drive, unplug, end.

The QEMU process dies with its owner (parent-death signal), with ``close``, or, when the owner was
killed in between, at the next start: each machine leaves a record of both processes' ids and start
times under ``/run/fabric-vm``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from lab.vm import image, initramfs
from lab.vm.wire import Agent, Job, Monitor, Result, VmError

RUN = Path("/run/fabric-vm")
GUEST = Path(__file__).parent / "guest"
_FIRST_NIC_SLOT = 0x10
_SPARE_SLOT = "0x1e"
_PERIPHERALS = "/machine/peripheral"
"""QEMU's list of devices that have an id."""
UNPLUG_S = 120
EMULATORS_FAULT = "Oops: int3"
"""A kernel patches its running code while it boots. QEMU's emulator does not always get that right:
another virtual CPU traps in code that is whole again."""
MOST_STARTS = 3
# x86-64-v2, which numpy's wheels ask for, and nothing more: what a newer model adds (five levels of
# page tables, AVX) is slower to emulate than to do without. Booting took 23 s of CPU, `max` 29 s.
_CPU = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"
# Housekeeping that a throw-away machine does not need; under emulation it costs seconds.
_MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-binfmt.service",
)

# The parent-death signal comes when the *thread* ends that started the process (prctl(2)).
_spawner = ThreadPoolExecutor(1, "qemu")


@dataclass(frozen=True, slots=True)
class Nic:
    """One end of a cable: datagrams between two Unix sockets, one Ethernet frame each."""

    local: Path
    remote: Path
    mac: str


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc(5), field 22); None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def clean_stale() -> list[str]:
    """End machines whose owner is gone; returns their names. Never touches a reused process id."""
    cleaned = []
    for record in sorted(RUN.glob("*/machine.json")):
        try:
            data = json.loads(record.read_text())
        except (OSError, ValueError):
            data = {}
        if data and start_time(data["owner"]) == data["owner_start"]:
            continue
        if data and start_time(data["pid"]) == data["pid_start"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(data["pid"], signal.SIGKILL)
        shutil.rmtree(record.parent, ignore_errors=True)
        cleaned.append(record.parent.name)
    return cleaned


def _overlay(
    name: str, nics: int, mount_points: Sequence[str], masked: Sequence[str]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Files and links laid over the root: agent, rail names, mounts of the further disks."""
    fstab = [f"/dev/vd{chr(ord('b') + i)} {at} ext4 ro 0 0\n" for i, at in enumerate(mount_points)]
    files = {
        "usr/local/lib/fabric-vm/agent.py": (GUEST / "agent.py").read_bytes(),
        "etc/systemd/system/fabric-vm-agent.service": (GUEST / "agent.service").read_bytes(),
        "etc/systemd/system/fabric-vm-shell.service": (GUEST / "shell.service").read_bytes(),
        "etc/fstab": "".join(fstab).encode(),
        "etc/hostname": f"{name}\n".encode(),
        "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {name}\n".encode(),
        "etc/modules-load.d/fabric-vm.conf": b"virtio_console\nvirtio_net\n",
    }
    for i in range(nics):
        match = f"[Match]\nPath=pci-0000:00:{_FIRST_NIC_SLOT + i:02x}.0\n\n[Link]\nName=rail{i}\n"
        files[f"etc/systemd/network/10-rail{i}.link"] = match.encode()
    links = {f"etc/systemd/system/{unit}": "/dev/null" for unit in masked}
    wants = "etc/systemd/system/sysinit.target.wants/fabric-vm-agent.service"
    links[wants] = "/etc/systemd/system/fabric-vm-agent.service"
    wants = "etc/systemd/system/multi-user.target.wants/fabric-vm-shell.service"
    links[wants] = "/etc/systemd/system/fabric-vm-shell.service"
    return files, links


class Vm:
    """A Debian guest. Use as a context manager; ``boot`` waits until the agent answers.

    Args:
        name: host name of the guest and name of its directory under ``/run/fabric-vm``.
        base: the image to boot; it stays unchanged.
        nics: become ``rail0``, ``rail1``, … in the guest.
        mounts: further ext4 images by the place where the guest mounts them, read-only.
        memory_mib: guest memory.
        cpus: virtual CPUs; with one, a busy poller starves the kernel's workers.
        masked: units that the guest does not start, beside those that no guest needs.
    """

    def __init__(
        self,
        name: str,
        base: image.Image,
        nics: Sequence[Nic] = (),
        mounts: Mapping[str, Path] | None = None,
        memory_mib: int = 768,
        cpus: int = 1,
        masked: Sequence[str] = (),
    ) -> None:
        self.name, self.nics = name, tuple(nics)
        self._cpus, self._masked = cpus, (*_MASKED, *masked)
        self._base, self._mounts, self._memory = base, dict(mounts or {}), memory_mib
        self._dir = RUN / f"{name}-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor: Monitor | None = None
        self._agent: Agent | None = None

    @property
    def shell(self) -> Path:
        """Socket of the console that a root shell runs on."""
        return self._dir / "shell.sock"

    def _argv(self) -> list[str]:
        d = self._dir
        argv = ["setpriv", "--pdeathsig", "KILL", "--", "qemu-system-x86_64"]
        argv += ["-accel", "tcg", "-cpu", _CPU, "-smp", str(self._cpus)]
        argv += ["-m", str(self._memory)]
        argv += ["-M", "pc", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        argv += ["-kernel", str(self._base.kernel), "-initrd", str(d / "initrd")]
        argv += [
            "-append",
            "console=ttyS0 panic=-1 oops=panic mitigations=off audit=0 apparmor=0 selinux=0 "
            "net.ifnames=1 quiet",
        ]
        argv += ["-serial", f"file:{d / 'console.log'}"]
        argv += ["-qmp", f"unix:{d / 'qmp.sock'},server=on,wait=off"]
        for disk in (self._base.root, *self._mounts.values()):
            argv += ["-drive", f"file={disk},format=raw,if=virtio,snapshot=on,cache=unsafe"]
        argv += ["-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci"]
        argv += ["-device", "virtio-serial-pci", "-chardev"]
        argv += [f"socket,id=agent,path={d / 'agent.sock'},server=on,wait=off"]
        argv += ["-device", "virtserialport,chardev=agent,name=fabric.agent"]
        argv += ["-chardev", f"socket,id=shell,path={self.shell},server=on,wait=off"]
        argv += ["-device", "virtconsole,chardev=shell"]
        for i, nic in enumerate(self.nics):
            argv += ["-netdev", f"dgram,id=net{i},local.type=unix,local.path={nic.local},"
                     f"remote.type=unix,remote.path={nic.remote}"]  # fmt: skip
            argv += ["-device", f"virtio-net-pci,id=nic{i},netdev=net{i},mac={nic.mac},romfile=,"
                     f"addr={_FIRST_NIC_SLOT + i:#x}"]  # fmt: skip
        return argv

    def start(self) -> Self:
        """Start QEMU; the guest boots meanwhile. Raises ``VmError`` when QEMU does not come up."""
        self._dir.mkdir(parents=True)
        files, links = _overlay(self.name, len(self.nics), list(self._mounts), self._masked)
        (self._dir / "initrd").write_bytes(initramfs.build(self._base.tree, files, links))
        return self._power_on()

    def _power_on(self) -> Self:
        with (self._dir / "qemu.log").open("wb") as log:
            env = {**os.environ, "TMPDIR": str(self._dir)}
            self._process = _spawner.submit(
                subprocess.Popen,
                self._argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
            ).result()  # fmt: skip
        record = {
            "pid": self._process.pid,
            "pid_start": start_time(self._process.pid),
            "owner": os.getpid(),
            "owner_start": start_time(os.getpid()),
        }
        (self._dir / "machine.json").write_text(json.dumps(record))
        deadline = time.monotonic() + 20
        try:
            self._monitor = Monitor(self._dir / "qmp.sock", deadline)
            self._agent = Agent(self._dir / "agent.sock", deadline, self.console)
        except VmError as err:
            log_text = (self._dir / "qemu.log").read_text(errors="replace")
            self.close()
            raise VmError(f"{err}\nqemu: {log_text[-2000:]}") from err
        return self

    def wait_booted(self, timeout: float = 400) -> Self:
        """Wait until the guest's agent answers and systemd has finished starting.

        A kernel that died of `EMULATORS_FAULT` is started again, `MOST_STARTS` times at most.
        """
        deadline = time.monotonic() + timeout
        for start in itertools.count(1):
            try:
                self._await_system(deadline)
                return self
            except FutureTimeout as err:
                text = f"{self.name} did not boot in {timeout} s\n{self.console()}"
                raise VmError(text) from err
            except VmError:
                if start == MOST_STARTS or EMULATORS_FAULT not in self.console():
                    raise
            print(f"{self.name}: its kernel died of an emulator's fault, once more", flush=True)
            self.power_off()
            self.power_on()
        raise AssertionError("unreachable")

    def _await_system(self, deadline: float) -> None:
        assert self._agent is not None
        self._agent.wait_hello(max(1.0, deadline - time.monotonic()))
        left = max(1.0, deadline - time.monotonic())
        state = self.run("systemctl", "is-system-running", "--wait", timeout=left)
        if state.out.strip() not in ("running", "degraded"):
            raise VmError(f"{self.name}: systemd says {state.out.strip()!r}\n{self.console()}")

    def console(self, lines: int = 80) -> str:
        """The last lines of the serial console."""
        path = self._dir / "console.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def begin(self, *argv: str, timeout: float = 300, stdin: str = "") -> Job:
        """Start a command in the guest; it is killed after ``timeout`` seconds."""
        if self._agent is None:
            raise VmError(f"{self.name} is not running")
        return Job(self._agent, argv, timeout, stdin)

    def run(self, *argv: str, timeout: float = 300, stdin: str = "") -> Result:
        """Run a command in the guest to its end."""
        return self.begin(*argv, timeout=timeout, stdin=stdin).wait()

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC of the guest."""
        assert self._agent is not None
        return self._agent.now_ns()

    def write(self, path: str, data: str | bytes, mode: int = 0o644) -> None:
        """Write a file in the guest, with its directories."""
        assert self._agent is not None
        self._agent.write(path, data.encode() if isinstance(data, str) else data, mode)

    def ask(self, path: str, line: str) -> str:
        """Send a line to a Unix socket in the guest and return its answer.

        Costs the guest no process, so it suits polling. Raises ``VmError`` when nobody listens.
        """
        assert self._agent is not None
        return self._agent.ask(path, line)

    def set_link(self, rail: int, *, up: bool) -> None:
        """Plug or unplug rail ``rail``: the guest's NIC gains or loses carrier."""
        assert self._monitor is not None
        self._monitor.call("set_link", name=f"nic{rail}", up=up)

    def set_paused(self, *, paused: bool) -> None:
        """Stop all virtual CPUs and the guest's clocks, or let them go on.

        Raises:
            VmError: it is not running.
        """
        if self._monitor is None:
            raise VmError(f"{self.name} is not running")
        self._monitor.call("stop" if paused else "cont")

    def power_off(self) -> None:
        """Power loss: the machine ends without a word to its guest. Its directory stays."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._hang_up()

    def power_on(self) -> Self:
        """Start the machine again after `power_off`; `wait_booted` is the caller's.

        All that the guest wrote is gone: it starts from the image.
        """
        for path in (*self._dir.glob("*.sock"), *(nic.local for nic in self.nics)):
            path.unlink(missing_ok=True)
        return self._power_on()

    def reset(self) -> None:
        """Press the reset button; `wait_booted` is the caller's. What was written stays."""
        assert self._monitor is not None
        assert self._agent is not None
        # Stopped meanwhile, so that the new connection gets no word of the old boot.
        self._monitor.call("stop")
        self._monitor.call("set-action", reboot="reset")
        self._monitor.call("system_reset")
        self._agent.close()
        self._agent = Agent(self._dir / "agent.sock", time.monotonic() + 20, self.console)
        self._monitor.call("cont")

    def set_plugged(self, rail: int, *, plugged: bool) -> None:
        """Take rail ``rail``'s NIC out of its PCI slot, or put it back.

        Raises:
            VmError: the guest, which is asked to let it go, has not done so in time.
        """
        assert self._monitor is not None
        name = f"nic{rail}"
        if not plugged:
            self._monitor.call("device_del", id=name)
            deadline = time.monotonic() + UNPLUG_S
            while name in self._peripherals():
                if time.monotonic() > deadline:
                    raise VmError(f"{self.name}: {name} is still plugged in after {UNPLUG_S} s")
                time.sleep(0.05)
            return
        self._monitor.call(
            "device_add", driver="virtio-net-pci", id=name, netdev=f"net{rail}",
            mac=self.nics[rail].mac, addr=f"{_FIRST_NIC_SLOT + rail:#x}", romfile="",
        )  # fmt: skip

    def _peripherals(self) -> set[str]:
        assert self._monitor is not None
        rows = cast("list[dict[str, str]]", self._monitor.call("qom-list", path=_PERIPHERALS))
        return {row["name"] for row in rows}

    def plug(self, driver: str, name: str) -> None:
        """Put a PCI device into the running machine; one at a time.

        Args:
            driver: QEMU's name of it.
            name: for `unplug`.
        """
        assert self._monitor is not None
        self._monitor.call("device_add", driver=driver, id=name, addr=_SPARE_SLOT, romfile="")

    def unplug(self, name: str) -> None:
        """Take it out; the guest is asked, and does so within seconds."""
        assert self._monitor is not None
        self._monitor.call("device_del", id=name)

    def _hang_up(self) -> None:
        if self._agent is not None:
            self._agent.close()
        if self._monitor is not None:
            self._monitor.close()
        self._agent = self._monitor = self._process = None

    def close(self) -> None:
        """End the machine at once and remove its directory; safe to call twice."""
        if self._monitor is not None:
            with contextlib.suppress(VmError, OSError):
                self._monitor.call("quit")
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._hang_up()
        shutil.rmtree(self._dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
