"""``fabricctl``: asks the daemon, and promotes its mode.

Exit status: 0 done, 1 the daemon cannot be reached or says no, 2 wrong usage; `check` has its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fabricd import __version__
from fabricd.cli import (
    check_command,
    client,
    clock_command,
    doctor_command,
    job_commands,
    job_directory_command,
    locate_command,
    operator_commands,
    plugin_check,
    plugin_env,
    probe_commands,
    promote,
    show,
    support_command,
    training_commands,
)
from fabricd.cli.base import (
    DEFAULT_CONFIG,
    DEFAULT_SOCKET,
    Json,
    Socket,
    ask,
    err,
    fail,
    out,
    parse_since,
    put_json,
)
from fabricd.config.loader import ConfigError, config_hash, policy_hash, read

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
app.add_typer(job_directory_command.app, name="job-directory")

operator_commands.register(app)
probe_commands.register(app)
locate_command.register(app)
training_commands.register(app)
app.command(cls=check_command.CheckCommand, epilog="Example: fabricctl check --fail-on critical")(
    check_command.check
)
app.command(cls=check_command.CheckCommand, epilog="Example: fabricctl doctor --pid 4711")(
    doctor_command.doctor
)
app.command(epilog="Example: fabricctl clock --json")(clock_command.clock)
app.command(epilog="Example: fabricctl promote steer --group backend")(promote.promote)
app.command("support-bundle", epilog="Example: fabricctl support-bundle --out /tmp/case-17.tar.gz")(
    support_command.support_bundle
)


@app.command(epilog="Example: fabricctl status --json | jq .mode")
def status(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:
    """Mode, link states, prober, timeline."""
    data = ask(socket, {"op": "status"})
    if as_json:
        put_json(data)
    else:
        show.status(out, data)


@app.command(epilog="Example: fabricctl links --paths")
def links(
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    paths: Annotated[bool, typer.Option("--paths", help="Each link's paths too.")] = False,
) -> None:
    """State, weight, flaps, penalty and probes of each link."""
    data = ask(socket, {"op": "links"})
    if as_json:
        put_json(data)
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
    data = ask(socket, document)
    if as_json:
        put_json(data)
        return
    for event in data:
        out.print(show.event_line(event), soft_wrap=True)
    if not data:
        err.print("no such rows; --since, --link, --kind: fabricctl timeline --help")


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
        recent = ask(socket, {"op": "timeline", "limit": count})
    _print_events(recent, as_json=as_json)
    if not follow:
        return
    try:
        for event in client.stream(socket, {"op": "events"}):
            _print_events([event], as_json=as_json)
    except (client.DaemonError, OSError) as error:
        fail(str(error))
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
        fail(str(error))
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
        fail(str(error))
    else:
        sys.stdout.write(text)


plugin_app.command(
    "check", cls=check_command.CheckCommand,
    epilog="Example: fabricctl plugin check --hosts gpu-01,gpu-02 --via 'srun -N1 -w {host}'",
)(plugin_check.plugin_check)  # fmt: skip


@config_app.command("check", epilog="Example: fabricctl config check /etc/fabricd/fabricd.toml")
def config_check(
    file: Annotated[Path, typer.Argument(help="The main file; conf.d lies beside it.")] = (
        DEFAULT_CONFIG
    ),
    as_json: Json = False,
) -> None:
    """Validate a file and its overrides without a daemon: 0 valid, 1 wrong; all problems."""
    problems: list[dict[str, Any]] = []
    good: dict[str, Any] = {}
    try:
        loaded = read(file)
        config = loaded.config
        good = {
            "hash": config_hash(config), "policy_hash": policy_hash(config),
            "files": list(loaded.files), "peers": len(config.peers),
            "altnames": dict(loaded.altnames),
        }  # fmt: skip
    except ConfigError as error:
        problems = [
            {"file": p.file, "line": p.line, "key": p.key, "text": p.text} for p in error.problems
        ]
        if not as_json:
            for problem in error.problems:
                err.print(str(problem), soft_wrap=True)
    if as_json:
        put_json({"file": str(file), "valid": not problems, "problems": problems} | good)
    elif not problems:
        out.print(f"{file}: valid, hash {good['hash']}")
        for other in good["files"][1:]:
            out.print(f"  with {other}")
        for altname, netdev in good["altnames"].items():
            out.print(f"  {altname} is an altname of {netdev}")
    raise typer.Exit(1 if problems else 0)


@config_app.command("show", epilog="Example: fabricctl config show --json")
def config_show(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:  # noqa: ARG001
    """The configuration that the daemon runs with, defaults filled in."""
    put_json(ask(socket, {"op": "config"}))


@app.command(epilog="Example: fabricctl version --json")
def version(as_json: Json = False) -> None:
    """The version of this program."""
    if as_json:
        put_json({"version": __version__})
    else:
        out.print(f"fabricctl {__version__}")


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
