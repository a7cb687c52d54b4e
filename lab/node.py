"""One host of a lab: run things in it, its daemon and its prober."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lab.faults.base import Site, host_is_dead
from lab.lifecycle import procs
from lab.lifecycle.registry import LabError
from lab.network import build, netns
from lab.services import host_config
from lab.services.service import Service

if TYPE_CHECKING:
    from lab.clocks.virtual_clock import Step

REPO = Path(__file__).resolve().parent.parent
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=99",
    "TSAN_OPTIONS": "second_deadlock_stack=1:exitcode=99",
}


def build_dir() -> Path:
    """Where the native parts lie: ``build/$FABRIC_BUILD``, by default the release build."""
    return REPO / "build" / os.environ.get("FABRIC_BUILD", "release")


def prober_binary() -> Path:
    """``fabric-prober`` of this build; TSan has none (it is one thread) and takes release's."""
    base = build_dir()
    return (base.parent / "release" if base.name == "tsan" else base) / "prober" / "fabric-prober"


def native_prefix() -> list[str]:
    """What native programs of this build are started through.

    GCC 12's ThreadSanitizer cannot place its shadow under newer kernels' address randomization.
    """
    return ["setarch", "-R"] if build_dir().name == "tsan" else []


class Node:
    """Host ``index``; its files lie in ``dir``, its namespace is ``ns``."""

    def __init__(self, site: Site, index: int) -> None:
        self.site = site
        self.index = index
        self.name = f"h{index}"
        self.ns = site.topology.ns("host", index)
        self.dir = site.dir.host(index)
        self.run_dir = self.dir / "run"
        self.state_dir = self.dir / "state"
        self.config_path = self.dir / "fabricd.toml"
        self.stop_file = self.dir / "STOP"
        self.daemon: Service | None = None
        self.prober: Service | None = None
        self.clock: Service | None = None

    def make_dirs(self) -> None:
        """Directories that exist before any service does; jobs of any user may write stats."""
        for path in (self.run_dir / "prober", self.run_dir / "stats", self.state_dir):
            path.mkdir(parents=True, exist_ok=True)
        (self.run_dir / "stats").chmod(0o1733)

    def address(self, rail: int, family: int = 4) -> str:
        """Address of a rail."""
        topology = self.site.topology
        call = topology.address4 if family == 4 else topology.address6
        return call(self.index, rail)

    # Processes

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment that processes of this host get."""
        env = SANITIZER_ENV | dict(os.environ)
        env["FABRIC_RUN_DIR"] = str(self.run_dir)
        env["PYTHONPATH"] = str(REPO)
        env.update(extra or {})
        return env

    def popen(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = True,
    ) -> subprocess.Popen[Any]:
        """Start a process in this host; it is ended with the lab at the latest."""
        return procs.popen(
            self.ns,
            args,
            pid_dir=self.site.dir.pids,
            env=self.env(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=text,
        )

    def run(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float | None = 60,
        input_text: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end and capture the output.

        Raises:
            subprocess.CalledProcessError: exit status not 0 and ``check``.
            subprocess.TimeoutExpired: it was killed after ``timeout`` seconds.
        """
        process = procs.popen(
            self.ns,
            args,
            env=self.env(env),
            stdin=subprocess.PIPE if input_text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = process.communicate(input_text, timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        done = subprocess.CompletedProcess(
            [os.fspath(a) for a in args], process.returncode, out, err
        )
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, done.args, out, err)
        return done

    def fetch(self, url: str, timeout: float = 5.0) -> str:
        """Body of an HTTP URL as seen from inside the host (such as the metrics endpoint)."""

        def get() -> str:
            with urllib.request.urlopen(url, timeout=timeout) as reply:
                return str(reply.read().decode())

        return netns.run_in(self.ns, get)

    def pids(self) -> list[int]:
        """All processes in this host's namespace."""
        return [who.pid for who in procs.inhabitants([self.ns])]

    def carrier(self, rail: int) -> bool:
        """Whether the NIC sees a carrier (False too while it is administratively down)."""
        return build.read_links(self.ns)[f"rail{rail}"].carrier

    def carrier_down_count(self, rail: int) -> int:
        """The kernel's own count of carrier losses."""
        return build.read_links(self.ns)[f"rail{rail}"].carrier_down_count

    # fabricd and its prober

    @property
    def dead(self) -> bool:
        """Whether a node kill is in force."""
        return host_is_dead(self.site, self.index)

    def write_config(self, overrides: Mapping[str, Any] | None = None, mode: str = "steer") -> Path:
        """Write fabricd.toml and the mode that the host was last promoted to."""
        tree = host_config.host_config(
            self.site.topology,
            self.index,
            run_dir=self.run_dir,
            state_dir=self.state_dir,
            stop_file=self.stop_file,
            key_file=self.site.dir.key,
            overrides=overrides,
        )
        self.config_path.write_text(host_config.to_toml(tree))
        (self.state_dir / "mode").write_text(f"{mode}\n")
        return self.config_path

    def start_prober(self, *extra: str, restart: bool = True) -> Service:
        """Start ``fabric-prober``; ``extra`` are further arguments.

        Raises:
            LabError: it is not built.
        """
        binary = prober_binary()
        if not binary.exists():
            raise LabError(f"no {binary}; build it: ./run build {build_dir().name}")
        args = [*native_prefix(), str(binary), "--run-dir", str(self.run_dir)]
        args += ["--key-file", str(self.site.dir.key), *extra]
        self.prober = self._service("prober", args, restart=restart)
        self.prober.start()
        return self.prober

    def start_daemon(
        self,
        *,
        restart: bool = True,
        mode: str = "steer",
        env: Mapping[str, str] | None = None,
        **overrides: Mapping[str, Any],
    ) -> Service:
        """Write the configuration (``overrides`` are its tables) and start fabricd."""
        self.write_config(overrides, mode)
        # As systemd/fabricd.service.
        args = ["nice", "-n", "-10", sys.executable, "-m", "fabricd.daemon"]
        args += ["--config", str(self.config_path)]
        self.daemon = self._service("fabricd", args, restart=restart, env=env)
        self.daemon.start()
        return self.daemon

    def start_clock(
        self, *, seed: int = 0, origin_ns: int = 0, steps: Sequence[Step] = (), restart: bool = True
    ) -> Service:
        """Start fabric-clock, after `start_daemon` has written the configuration.

        Args:
            seed: not 0: the host has a virtual clock (`lab.clocks.virtual_clock`); its prober has
                none, so only with `[probe] synchronized = false`.
            origin_ns: of that, CLOCK_MONOTONIC_RAW.
            steps: of any host's virtual clock: each host is to know all of them.
            restart: again when it ends.
        """
        words = ["-m", "fabricd.clock", "--config", str(self.config_path)]
        if seed:
            words[1:2] = [
                "lab.clocks.clock_host",
                "--seed",
                str(seed),
                "--origin-ns",
                str(origin_ns),
            ]
            words += [word for step in steps for word in ("--step", str(step))]
        args = [sys.executable, *words]
        self.clock = self._service("fabric-clock", args, restart=restart)
        self.clock.start()
        return self.clock

    def _service(
        self, name: str, args: list[str], *, restart: bool, env: Mapping[str, str] | None = None
    ) -> Service:
        return Service(
            self.ns,
            f"{self.name} {name}",
            args,
            env=self.env(env),
            log=self.dir / f"{name}.log",
            pid_dir=self.site.dir.pids,
            restart=restart,
            forbidden=lambda: self.dead,
        )

    def kill_daemon(self, number: int = signal.SIGKILL) -> int:
        """Signal fabricd; the pid it had."""
        return self._running(self.daemon, "daemon").kill(number)

    def kill_prober(self, number: int = signal.SIGKILL) -> int:
        """Signal the prober; the pid it had."""
        return self._running(self.prober, "prober").kill(number)

    def restart_daemon(self) -> int:
        """Stop fabricd in an orderly way and start it again; the new pid."""
        service = self._running(self.daemon, "daemon")
        service.stop()
        service.start()
        return service.pid or 0

    def restart_prober(self) -> int:
        """Stop the prober in an orderly way and start it again; the new pid."""
        service = self._running(self.prober, "prober")
        service.stop()
        service.start()
        return service.pid or 0

    def _running(self, service: Service | None, what: str) -> Service:
        if service is None:
            raise LabError(f"{self.name}: the {what} was never started")
        return service

    def stop_services(self, grace_s: float = 3.0) -> None:
        """Stop the daemon, then clock and prober."""
        for service in (self.daemon, self.clock, self.prober):
            if service is not None:
                service.stop(grace_s)
