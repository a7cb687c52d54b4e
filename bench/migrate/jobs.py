"""Runs one training job and watches its processes, however it was launched."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.migrate.events import Events, parse_events
from bench.training.trace import Control, PageState, Phase, read_page

REPO = Path(__file__).parents[2]
LOOPS = REPO / "bench" / "training"
RANKS = 4
_START_S = 180.0
_IDLE_S = 0.2


class JobError(Exception):
    """The job did not do what the benchmark needs. The text has the end of its log."""


@dataclass
class Job:
    """A job of ``world`` ranks. ``launcher``: what runs it. ``directory``: its files."""

    directory: Path
    launcher: subprocess.Popen[bytes]
    world: int = RANKS
    control: Control = field(init=False)

    def __post_init__(self) -> None:
        self.control = Control(self.directory)

    def log(self) -> str:
        """What the job wrote so far."""
        return (self.directory / "log").read_text(errors="replace")

    def pages(self) -> dict[int, PageState]:
        """Pages of the live processes by pid."""
        found = {}
        for path in self.directory.glob("page.*"):
            pid = int(path.suffix[1:])
            page = read_page(self.directory, pid)
            if page is not None and self._runs(pid):
                found[pid] = page
        return found

    def _runs(self, pid: int) -> bool:
        """Whether this is a live process of the job: its pid may be another's by now."""
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()  # empty for a zombie
        except OSError:
            return False
        return os.fsencode(self.directory) in command.split(b"\0")

    def ranked(self) -> dict[int, PageState]:
        """Pages of the ranks by pid: live processes that committed in the newest generation.

        One that was taken over gives way to the others and may take minutes to be gone.
        """
        pages = {pid: page for pid, page in self.pages().items() if page.step}
        newest = max((page.committed for page in pages.values()), default=0)
        return {pid: page for pid, page in pages.items() if page.committed == newest}

    def ranks(self) -> dict[int, int]:
        """Pid of each of `ranked`."""
        return {page.rank: pid for pid, page in self.ranked().items()}

    def events(self) -> Events:
        """What all processes recorded so far."""
        files = self.directory.glob("events.*")
        return parse_events({int(path.suffix[1:]): path.read_text() for path in files})

    @property
    def has_ended(self) -> bool:
        """Whether nothing of the job runs any more."""
        return self.launcher.poll() is not None

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait until ``condition`` holds. Raises ``JobError`` where the job ends before."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.has_ended:
                raise JobError(f"the job ended before: {what}\n{self.log()[-2000:]}")
            if time.monotonic() > deadline:
                raise JobError(f"not within {timeout_s:g} s: {what}\n{self.log()[-2000:]}")
            time.sleep(0.005)

    def wait_end(self, timeout_s: float) -> None:
        """Wait until the job has ended well."""
        try:
            status = self.launcher.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise JobError(f"no end within {timeout_s:g} s\n{self.log()[-2000:]}") from None
        if status:
            raise JobError(f"the job ended with status {status}\n{self.log()[-2000:]}")

    def wait_running(self, steps: int) -> None:
        """Wait until each rank has applied ``steps`` more steps than now."""
        wanted = max((page.step for page in self.pages().values()), default=0) + steps

        def done() -> bool:
            at = [page.step for page in self.ranked().values()]
            return len(at) >= self.world and min(at) >= wanted

        self.wait_until(done, f"{self.world} ranks at step {wanted}", _START_S)

    def wait_committed(self, generation: int, timeout_s: float = 120) -> None:
        """Wait until all ranks have committed a step in a generation after ``generation``."""

        def done() -> bool:
            return sum(page.committed > generation for page in self.pages().values()) >= self.world

        self.wait_until(done, f"all ranks in a generation after {generation}", timeout_s)

    def wait_spares(self, count: int) -> None:
        """Wait until ``count`` spares are warm: they have rehearsed, and use no CPU any more."""

        def warm() -> list[int]:
            return [pid for pid, page in self.pages().items() if page.phase is Phase.WARM]

        while True:
            self.wait_until(lambda: len(warm()) >= count, f"{count} warm spares", _START_S)
            before = {pid: cpu_ticks(pid) for pid in warm()}
            time.sleep(_IDLE_S)
            if all(cpu_ticks(pid) == ticks for pid, ticks in before.items()):
                return

    def pause(self) -> None:
        """Let the ranks wait before a step that none has started."""
        last = max(page.step for page in self.pages().values())
        until = last + 3
        self.control.allow(until)
        self.wait_until(
            lambda: all(page.step >= until for page in self.ranked().values()),
            f"a pause before step {until}",
            _START_S,
        )


def cpu_ticks(pid: int) -> int | None:
    """User and system time of a process, proc(5); None for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[11]) + int(fields[12])


def resident_mb(pid: int) -> float:
    """Resident memory of a process; shared pages (torch's code) count in full."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} has no memory")


@contextmanager
def run_job(
    argv: Callable[[Path], Sequence[str | Path]],
    env: Mapping[str, str] | None = None,
    *,
    ranks: int = RANKS,
) -> Iterator[Job]:
    """Start a job of ``ranks`` in a directory of its own, which ``argv`` gets. Ends all of it."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no process is left behind
    directory = Path(tempfile.mkdtemp(prefix="bench-migrate-"))
    Control(directory)
    path = f"{REPO}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    with (directory / "log").open("wb") as log:
        launcher = subprocess.Popen(
            [os.fspath(word) for word in argv(directory)],
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    job = Job(directory, launcher, ranks)
    try:
        yield job
    finally:
        launcher.terminate()
        try:
            launcher.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
        for pid in job.pages():
            with contextlib.suppress(ProcessLookupError):  # one that was slow to end has ended
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory)
        signal.signal(signal.SIGTERM, before)


def arguments(directory: Path, steps: int, hashed: Sequence[int] = ()) -> list[str]:
    """Those of ``protected.py``. Each rank hashes its state after the steps ``hashed``."""
    return [str(directory), str(steps), *([",".join(map(str, hashed))] if hashed else [])]


def standalone(
    steps: int,
    *,
    spares: int,
    hashed: Sequence[int] = (),
    ranks: int = RANKS,
    loop: str = "protected.py",
) -> Callable[[Path], list[str | Path]]:
    """The command of a protected job on this machine alone."""

    def argv(directory: Path) -> list[str | Path]:
        return [
            sys.executable, "-m", "fabric_train.run", "--standalone",
            "--nproc-per-node", str(ranks), "--spares", str(spares),
            "--records", directory / "records.json",
            LOOPS / loop, *arguments(directory, steps, hashed),
        ]  # fmt: skip

    return argv


def plain(steps: int, *, ranks: int = RANKS) -> Callable[[Path], list[str | Path]]:
    """The command of a job without protection, on this machine alone."""

    def argv(directory: Path) -> list[str | Path]:
        return [sys.executable, LOOPS / "plain_job.py", directory, str(steps), str(ranks)]

    return argv


def torchrun(steps: int, *, every: int, restarts: int) -> Callable[[Path], list[str | Path]]:
    """The command of a job that writes a checkpoint ``every`` steps and is started again."""

    def argv(directory: Path) -> list[str | Path]:
        return [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", str(RANKS), "--max-restarts", str(restarts),
            LOOPS / "plain.py", directory, str(steps), str(every),
        ]  # fmt: skip

    return argv
