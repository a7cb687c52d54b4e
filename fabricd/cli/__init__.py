"""``fabricctl``: asks the daemon, and promotes its mode.

Exit status: 0 done, 1 the daemon cannot be reached or says no, 2 wrong usage.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fabricd import __version__
from fabricd.cli import client, job_commands, plugin_env, show
from fabricd.config import ConfigError, load

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Ask the fabricd of this host. Example: fabricctl links --json",
)
config_app = typer.Typer(no_args_is_help=True, help="The configuration file.")
app.add_typer(config_app, name="config")
plugin_app = typer.Typer(no_args_is_help=True, help="The plugin, for jobs.")
app.add_typer(plugin_app, name="plugin")

Socket = Annotated[
    Path, typer.Option("--socket", envvar="FABRIC_CTL_SOCKET", help="Control socket.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
DEFAULT_SOCKET = Path("/run/fabricd/ctl.sock")

out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_since(text: str, now_ns: int) -> int:
    """``90s``, ``15m``, ``2h``, ``7d`` ago, or seconds since the epoch, as ns.

    Raises:
        typer.BadParameter: neither.
    """
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return now_ns - round(float(match[1]) * _UNITS[match[2]] * 1e9)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return round(float(text) * 1e9)
    raise typer.BadParameter(f'"{text}"; allowed: 90s, 15m, 2h, 7d, or seconds since 1970')


def _ask(socket: Path, document: dict[str, Any]) -> Any:  # noqa: ANN401
    try:
        return client.request(socket, document)
    except (client.DaemonError, OSError) as error:
        _fail(str(error))


def _fail(text: str) -> Any:  # noqa: ANN401 - never returns
    err.print(f"fabricctl: {text}", style="red", markup=False, soft_wrap=True)
    raise typer.Exit(1)


def _json(data: Any) -> None:  # noqa: ANN401
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


@app.command(epilog="Example: fabricctl status --json | jq .mode")
def status(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:
    """Mode, link states, prober, timeline."""
    data = _ask(socket, {"op": "status"})
    if as_json:
        _json(data)
    else:
        show.status(out, data)


@app.command(epilog="Example: fabricctl links --paths")
def links(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    paths: Annotated[bool, typer.Option("--paths", help="Each link's paths too.")] = False,
) -> None:
    """State, weight, flaps, penalty and probes of each link."""
    data = _ask(socket, {"op": "links"})
    if as_json:
        _json(data)
    else:
        show.links(out, data, paths=paths)


@app.command(epilog="Example: fabricctl timeline --since 2h --link rail0 --kind flap")
def timeline(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    since: Annotated[str, typer.Option(help="90s, 15m, 2h, 7d ago, or epoch seconds.")] = "1d",
    link: Annotated[str | None, typer.Option(help="Only this interface.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind, e.g. flap.")] = None,
    limit: Annotated[int, typer.Option(min=0, max=100_000, help="The newest that many.")] = 200,
) -> None:
    """What happened: flaps, states, steering, modes."""
    document: dict[str, Any] = {
        "op": "timeline", "since_ns": parse_since(since, time.time_ns()), "limit": limit
    }  # fmt: skip
    document |= {k: v for k, v in (("link", link), ("kind", kind)) if v is not None}
    data = _ask(socket, document)
    if as_json:
        _json(data)
        return
    for event in data:
        out.print(show.event_line(event), soft_wrap=True)


@app.command(epilog="Example: fabricctl events --follow --json")
def events(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on for ever.")] = False,
    count: Annotated[int, typer.Option(min=0, help="The newest that many first.")] = 10,
) -> None:
    """The newest events, and with --follow each new one as it happens."""
    recent: list[dict[str, Any]] = []
    if count:
        recent = _ask(socket, {"op": "timeline", "limit": count})
    _print_events(recent, as_json=as_json)
    if not follow:
        return
    try:
        for event in client.stream(socket, {"op": "events"}):
            _print_events([event], as_json=as_json)
    except (client.DaemonError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _print_events(found: list[dict[str, Any]], *, as_json: bool) -> None:
    for event in found:
        if as_json:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()
        else:
            out.print(show.event_line(event), soft_wrap=True)


@app.command("top", epilog="Example: fabricctl top --groups --interval 2")
def job_top(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    interval: job_commands.Interval = 1.0,
    once: job_commands.Once = False,
    groups: job_commands.Groups = False,
    job: job_commands.JobPrefix = "",
) -> None:
    """What each job does on each rail now: rates, delivery latencies, paths."""
    try:
        looks = job_commands.watch(socket, interval, groups=groups, job=job, once=once)
        job_commands.show(out, looks, groups=groups, as_json=as_json)
    except (client.DaemonError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@plugin_app.command("env", epilog='Example: eval "$(fabricctl plugin env)"')
def plugin_environment(
    form: job_commands.Format = "sh",
    library: job_commands.Library = None,
    config: job_commands.ConfigFile = None,
    by_name: job_commands.ByName = False,
    job: job_commands.JobName = "",
) -> None:
    """The lines a job script needs to use the plugin."""
    try:
        text = job_commands.plugin_lines(form, library, config, by_name=by_name, job=job)
    except plugin_env.PluginError as error:
        _fail(str(error))
    else:
        sys.stdout.write(text)


@app.command(epilog="Example: fabricctl promote steer --yes")
def promote(
    mode: Annotated[str, typer.Argument(help="observe, steer or migrate.")],
    socket: Socket = DEFAULT_SOCKET,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    since: Annotated[str, typer.Option(help="How far back to look.")] = "7d",
    as_json: Json = False,
) -> None:
    """Raise (or lower) the mode, after showing what steering would have done."""
    if mode not in ("observe", "steer", "migrate"):
        raise typer.BadParameter(f'"{mode}"; allowed: observe, steer, migrate')
    start = parse_since(since, time.time_ns())
    query = {"op": "timeline", "kind": "would_steer", "since_ns": start, "limit": 10_000}
    would = _ask(socket, query) if mode != "observe" else []
    if mode != "observe" and not as_json:
        show.would_steer(out, would, since)
    if not yes and not typer.confirm(f"Set the mode to {mode}?", err=True):
        _fail("not changed")
    answer = _ask(socket, {"op": "promote", "mode": mode})
    if as_json:
        _json(answer | {"would_steer": would})
    else:
        out.print(f"promoted to {answer['promoted']}, in effect: {answer['mode']}")
        if answer["stop_file"]:
            out.print("The stop file is present: the host observes until it is removed.")


@config_app.command("check", epilog="Example: fabricctl config check /etc/fabricd/fabricd.toml")
def config_check(
    file: Annotated[Path, typer.Argument(help="The file to look at.")] = Path(
        "/etc/fabricd/fabricd.toml"
    ),
    as_json: Json = False,
) -> None:
    """Validate a file without a daemon; all problems at once."""
    problems: list[dict[str, Any]] = []
    try:
        load(file)
    except ConfigError as error:
        problems = [
            {"file": p.file, "line": p.line, "key": p.key, "text": p.text} for p in error.problems
        ]
        if not as_json:
            for problem in error.problems:
                sys.stderr.write(f"{problem}\n")
    if as_json:
        _json({"file": str(file), "valid": not problems, "problems": problems})
    elif not problems:
        out.print(f"{file}: valid", markup=False)
    raise typer.Exit(1 if problems else 0)


@config_app.command("show", epilog="Example: fabricctl config show --json")
def config_show(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:  # noqa: ARG001
    """The configuration that the daemon runs with, defaults filled in."""
    _json(_ask(socket, {"op": "config"}))


@app.command(epilog="Example: fabricctl version --json")
def version(as_json: Json = False) -> None:
    """The version of this program."""
    if as_json:
        _json({"version": __version__})
    else:
        out.print(f"fabricctl {__version__}")


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
