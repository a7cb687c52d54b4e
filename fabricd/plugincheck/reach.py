"""Runs a command on many hosts, through ssh or a template; bounded in time and output."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fabricd.plugincheck.answer import Answer, AnswerError, answers, parse, shown

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", "{host}")
PLACE = "{host}"
AT_ONCE = 32
MAX_OUTPUT = 1024 * 1024
"""Bytes of standard output, of one host; as many more for each further host of one command."""
MAX_ERRORS = 16 * 1024
_LOOK_S = 0.05
_HOST = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}@)?[A-Za-z0-9_:\[][A-Za-z0-9_.:%\[\]-]{0,253}"
)


class TemplateError(ValueError):
    """The hosts or the template cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed.

    Attributes:
        status: exit status; None when it was ended here.
        output: standard output.
        problem: why it cannot be trusted to be all; empty: it is.
        errors: the last line of standard error.
    """

    status: int | None
    output: bytes
    problem: str = ""
    errors: str = ""


def host_names(text: str) -> tuple[str, ...]:
    """The hosts of ``h1,h2,…``.

    Raises:
        TemplateError: one is no host's name (an option of ssh, say), or comes twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if _HOST.fullmatch(name) is None:
            raise TemplateError(f"{name[:80]!r} is no host's name")
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise TemplateError(f"{', '.join(doubled)} is named twice")
    if not names:
        raise TemplateError("no host is named")
    return tuple(names)


def command_for(host: str, via: str | None, command: Sequence[str]) -> list[str]:
    """The words that run a command on a host.

    Args:
        host: its name; not used by a template without ``{host}``.
        via: a template; None for ssh, whose remote shell gets the words quoted.
        command: what to run there.

    Raises:
        TemplateError: the template's quotes do not match, or it is empty.
    """
    if via is None:
        return [word.replace(PLACE, host) for word in SSH] + [shlex.join(command)]
    try:
        words = shlex.split(via)
    except ValueError as error:
        raise TemplateError(f"--via {via!r}: {error}") from None
    if not words:
        raise TemplateError("--via is empty")
    return [word.replace(PLACE, host) for word in words] + list(command)


def query_hosts(
    hosts: Sequence[str], via: str | None, command: Sequence[str], limit_s: float
) -> dict[str, Answer | str]:
    """Each host's answer, or why there is none.

    Args:
        hosts: as of `host_names`.
        via: a template with ``{host}`` runs once for each host; without it once for all of them
            (``srun -N4 --ntasks-per-node=1``), and answers are known by the names in them.
        command: what prints an answer there.
        limit_s: seconds for each command.
    """
    if via is not None and PLACE not in via:
        output = run(command_for("", via, command), limit_s, MAX_OUTPUT * len(hosts))
        return _by_host_name(hosts, output)
    with ThreadPoolExecutor(min(AT_ONCE, len(hosts))) as pool:
        made = [command_for(host, via, command) for host in hosts]
        replies = pool.map(lambda argv: _one(run(argv, limit_s, MAX_OUTPUT)), made)
        return dict(zip(hosts, replies, strict=True))


def run(argv: Sequence[str], limit_s: float, limit_bytes: int) -> CommandOutput:
    """Run a command to its end, its time or its bytes.

    What it started and left behind (ssh's master) is not waited for; after its time or its bytes
    its process group is killed.
    """
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return CommandOutput(None, b"", f"{argv[0]}: {why}")
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout as out, process.stderr as errors:
        reader = _Reader(out.fileno(), errors.fileno(), limit_bytes)
        problem = _followed(process, reader, limit_s)
    lines = [line for line in reader.errors.decode("utf-8", "replace").splitlines() if line.strip()]
    return CommandOutput(
        process.returncode, bytes(reader.output), problem, lines[-1] if lines else ""
    )


class _Reader:
    """Reads two pipes without waiting: the one to a limit, of the other the beginning."""

    def __init__(self, out: int, errors: int, limit: int) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self.limit = limit
        self._selector = selectors.DefaultSelector()
        for fd in (out, errors):
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)
        self._out = out

    @property
    def open(self) -> bool:
        """Whether a pipe may say more."""
        return bool(self._selector.get_map())

    @property
    def over(self) -> bool:
        """Whether there was more than the limit."""
        return len(self.output) > self.limit

    def read(self, wait_s: float) -> bool:
        """Read what is there; waits so long for something. Returns whether there was anything."""
        events = self._selector.select(wait_s)
        for key, _ in events:
            data = b""
            with contextlib.suppress(BlockingIOError):
                data = os.read(key.fd, 65536)
                if not data:
                    self._selector.unregister(key.fd)
            if key.fd == self._out:
                self.output += data
            elif len(self.errors) < MAX_ERRORS:
                self.errors += data
        return bool(events)

    def close(self) -> None:
        """Let go of the selector; the pipes are the caller's."""
        self._selector.close()


def _followed(process: subprocess.Popen[bytes], reader: _Reader, limit_s: float) -> str:
    """Read until the process has ended; returns why it was ended here, or nothing."""
    end = time.monotonic() + limit_s
    problem = ""
    try:
        while process.poll() is None and not problem:
            if reader.open:
                reader.read(_LOOK_S)
            else:
                time.sleep(_LOOK_S)
            if reader.over:
                problem = f"it printed more than {reader.limit} bytes"
            elif time.monotonic() > end:
                problem = f"it did not end within {limit_s:g} s"
        while reader.open and not problem and reader.read(0):
            if reader.over:
                problem = f"it printed more than {reader.limit} bytes"
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        reader.close()
    return problem


def _one(printed: CommandOutput) -> Answer | str:
    """The one answer in what was printed, or why there is none."""
    if printed.problem:
        return printed.problem
    lines = list(answers(printed.output))
    if not lines:
        reason = f": {shown(printed.errors)}" if printed.errors else ""
        return f"no answer (exit status {printed.status}{reason})"
    if len(lines) > 1:
        return f"{len(lines)} answers of one host"
    try:
        return parse(lines[0])
    except AnswerError as error:
        return shown(str(error))


def _by_host_name(hosts: Sequence[str], printed: CommandOutput) -> dict[str, Answer | str]:
    """Answers of one command for all hosts; names with and without a domain are the same."""
    found: dict[str, Answer | str] = {}
    wrong = ""
    for line in answers(printed.output):
        try:
            answer = parse(line)
        except AnswerError as error:
            wrong = wrong or shown(str(error))
            continue
        name = _match_host(hosts, answer.host)
        if name is None:
            wrong = wrong or f"an answer of {answer.host}, which was not asked"
        elif name in found:
            found[name] = "more than one answer has its name (one task a node: --ntasks-per-node=1)"
        else:
            found[name] = answer
    status = f" (exit status {printed.status}{': ' + printed.errors if printed.errors else ''})"
    missing = printed.problem or (wrong and f"no answer; but {wrong}") or f"no answer{status}"
    return {host: found.get(host, shown(missing)) for host in hosts}


def _match_host(hosts: Sequence[str], claimed: str) -> str | None:
    """The host that was asked and has this name; an exact one before one without domains."""
    plain = {host: host.rpartition("@")[2] for host in hosts}
    exact = [host for host in hosts if plain[host] == claimed]
    short = [host for host in hosts if plain[host].split(".")[0] == claimed.split(".")[0]]
    return next(iter((*exact, *short)), None)
