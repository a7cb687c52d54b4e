"""``fabricctl check``: one line and an exit status, for schedulers' and monitors' health checks.

Wrong usage says nothing of the links, so it is UNKNOWN here, and not 2 as with other commands: 2
is CRITICAL, for which schedulers drain a host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from fabricd.cli import client
from fabricd.cli.base import DEFAULT_SOCKET, Json, Socket, parse_duration, put, put_json
from fabricd.views import host_check as judging

FailOn = Annotated[
    str,
    typer.Option("--fail-on", help="warning, or critical: then a WARNING exits with 0, too."),
]

_USAGE_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""Click's UsageError. Which package has it depends on the version of typer."""


class CheckCommand(TyperCommand):
    """A command whose wrong usage is UNKNOWN, as line and as exit status."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Click's context
        """As Click's; wrong options end with 3."""
        with _usage_is_unknown():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Click's context
        """As Click's; wrong values end with 3."""
        with _usage_is_unknown():
            return super().invoke(ctx)


@contextmanager
def _usage_is_unknown() -> Iterator[None]:
    try:
        yield
    except _USAGE_ERROR as error:
        error.exit_code = int(judging.Level.UNKNOWN)
        put(judging.unknown(f"wrong usage: {error.format_message()}").line())
        raise


def check(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    timeout: Annotated[str, typer.Option(help="For all of it: 5s.")] = "5s",
    fail_on: FailOn = "warning",
) -> None:
    """Are this host's links fit for a job? Exit status 0 ok, 1 warning, 2 critical, 3 unknown."""
    if fail_on not in ("warning", "critical"):
        raise typer.BadParameter(f'"{fail_on}"; allowed: warning, critical')
    verdict = _verdict(socket, parse_duration(timeout))
    if as_json:
        put_json(verdict.document())
    else:
        put(verdict.line())
    passed = fail_on == "critical" and verdict.level is judging.Level.WARNING
    raise typer.Exit(0 if passed else int(verdict.level))


def _verdict(socket: Socket, limit_s: float) -> judging.Verdict:
    end = time.monotonic() + limit_s
    try:
        status, links = (
            client.request(socket, {"op": op}, limit_s=end - time.monotonic())
            for op in ("status", "links")
        )
        return judging.judge(status, links)
    except (client.DaemonError, OSError) as error:
        return judging.unknown(str(error))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return judging.unknown(f"the answer of fabricd makes no sense: {error!r}")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(cls=CheckCommand, epilog="Example: fabricctl check --fail-on critical")(check)
