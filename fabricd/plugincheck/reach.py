"""Runs a command on many hosts, through ssh or a template; bounded in time and output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fabricd.plugincheck.answer import Answer, AnswerError, answers, parse, shown
from fabricd.process.bounded_run import CommandOutput, run

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", "{host}")
PLACE = "{host}"
AT_ONCE = 32
MAX_OUTPUT = 1024 * 1024
"""Bytes of standard output, of one host; as many more for each further host of one command."""
_HOST = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}@)?[A-Za-z0-9_:\[][A-Za-z0-9_.:%\[\]-]{0,253}"
)


class TemplateError(ValueError):
    """The hosts or the template cannot be used; the text says why."""


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
