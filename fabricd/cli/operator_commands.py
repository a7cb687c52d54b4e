"""``fabricctl drain``, ``undrain``, ``maintenance``, ``detector``, ``explain``, ``reload``."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from fabricd.cli import client, show_explain, top, training_commands
from fabricd.cli.base import (
    DEFAULT_SOCKET,
    Json,
    Reason,
    Socket,
    ask,
    fail,
    out,
    parse_duration,
    put_json,
)
from fabricd.cli.show import age, counted
from fabricd.views.host_check import CARRIES

detector_app = typer.Typer(no_args_is_help=True, help="Detectors and their kill switches.")

For = Annotated[
    str | None, typer.Option("--for", help="30m, 2h, 1d; without it until it is taken back.")
]
LinkName = Annotated[str, typer.Argument(help="The interface, e.g. rail0.")]
QUIET_S = 2.0
RELOAD_S = 60.0
"""The daemon gives up reading its files before that, and says so."""


def drain(
    link: LinkName,
    socket: Socket = DEFAULT_SOCKET,
    for_: For = None,
    reason: Reason = "",
    wait: Annotated[
        str | None, typer.Option("--wait", help="So long at most until no job's bytes move on it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Take a link out for planned work; refused for the last that carries."""
    patience = None if wait is None else parse_duration(wait)
    document = {"op": "drain", "link": link, "reason": reason}
    answer = ask(socket, document | _seconds(for_))
    if patience is None:
        quiet, unknown = None, ""
    else:
        quiet, unknown = _wait_quiet(socket, link, patience)
    left = _left(socket)
    if as_json:
        waited = {} if patience is None else {"quiet": quiet, "unknown": unknown}
        put_json(answer | {"left": left} | waited)
    else:
        out.print(f"{link} is drained {_length(answer)}: fabricctl undrain {link} gives it back")
        for line in left_lines(left):
            out.print(line, soft_wrap=True)
    if unknown:
        fail(f"whether jobs move bytes on {link} is not known: {unknown}; it stays drained")
    if quiet is False:
        fail(f"jobs still move bytes on {link} after {wait}; it stays drained")
    if quiet and not as_json:
        out.print(f"no job has moved a byte on {link} for {QUIET_S:g} s")


def undrain(link: LinkName, socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:
    """Give a drained link back to traffic."""
    answer = ask(socket, {"op": "undrain", "link": link})
    if as_json:
        put_json(answer)
    else:
        out.print(f"{link} is given back")


def maintenance(
    target: Annotated[str, typer.Argument(help='An interface, or "host" for all links.')],
    socket: Socket = DEFAULT_SOCKET,
    for_: Annotated[str | None, typer.Option("--for", help="How long: 30m, 2h, 1d (7d).")] = None,
    reason: Reason = "",
    end: Annotated[bool, typer.Option("--end", help="End the window now.")] = False,
    as_json: Json = False,
) -> None:
    """Open a maintenance window: soft evidence steers nothing, flaps alarm nobody."""
    if end == (for_ is not None):
        raise typer.BadParameter("exactly one of --for and --end")
    if end:
        answer = ask(socket, {"op": "maintenance_end", "target": target})
    else:
        document = {"op": "maintenance", "target": target, "reason": reason}
        answer = ask(socket, document | _seconds(for_))
    if as_json:
        put_json(answer)
    elif end:
        out.print(f"maintenance of {target} is over")
    else:
        out.print(f"maintenance of {target} {_length(answer)}")


@detector_app.command("off", epilog="Example: fabricctl detector off loss --for 2h")
def detector_off(
    name: Annotated[str, typer.Argument(help="As fabricctl detector list says.")],
    socket: Socket = DEFAULT_SOCKET,
    for_: For = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Switch a detector off: it judges and steers nothing any more."""
    document = {"op": "detector", "name": name, "on": False, "reason": reason}
    answer = ask(socket, document | _seconds(for_))
    if as_json:
        put_json(answer)
    else:
        out.print(f"detector {name} is off {_length(answer)}")


@detector_app.command("on", epilog="Example: fabricctl detector on loss")
def detector_on(
    name: Annotated[str, typer.Argument(help="As fabricctl detector list says.")],
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
) -> None:
    """Switch a detector on again."""
    answer = ask(socket, {"op": "detector", "name": name, "on": True})
    if as_json:
        put_json(answer)
    else:
        out.print(f"detector {name} is on")


@detector_app.command("list", epilog="Example: fabricctl detector list --json")
def detector_list(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:
    """All detectors, which are off, and for how long."""
    operator = ask(socket, {"op": "status"})["operator"]
    if as_json:
        put_json({"detectors": operator["detectors"], "off": operator["detector_off"]})
    else:
        show_explain.detectors(out, operator)


def explain(
    link: Annotated[
        str, typer.Argument(metavar="LINK|host|job", help="The interface, or host, or job.")
    ],
    name: Annotated[str | None, typer.Argument(help="After host or job: its name.")] = None,
    uid: Annotated[
        int | None, typer.Option(help="Of the job's user, where several have one of that name.")
    ] = None,
    socket: Socket = DEFAULT_SOCKET,
    as_json: Json = False,
    detail: Annotated[
        bool, typer.Option("--detail", help="Also what is not read of the NIC, and all rows.")
    ] = False,
) -> None:
    """Why a link, or another host, is what it is; what a job that stands or is slow waits for."""
    if name is not None:
        if link == "host":
            training_commands.explain_host(name, socket, as_json=as_json)
        elif link == "job":
            data = ask(socket, {"op": "explain_job", "job": name, "uid": uid})
            put_json(data) if as_json else show_explain.job(out, data)
        else:
            raise typer.BadParameter(f'"{link} {name}"; allowed: LINK, host NAME, or job NAME')
        return
    data = ask(socket, {"op": "explain", "link": link})
    if as_json:
        put_json(data)
    else:
        show_explain.explain(out, data, detail=detail)


def reload(socket: Socket = DEFAULT_SOCKET, as_json: Json = False) -> None:
    """Read the configuration again; the old one stays, and 1 is returned, if it is wrong."""
    answer = ask(socket, {"op": "reload"}, limit_s=RELOAD_S)
    if as_json:
        put_json(answer)
    else:
        changed = ", ".join(answer["changed"]) or "nothing"
        out.print(
            f"reloaded {len(answer['files'])} files, hash {answer['hash']}: {changed} changed"
        )


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog='Example: fabricctl drain rail0 --for 2h --reason "new optics"')(drain)
    app.command(epilog="Example: fabricctl undrain rail0")(undrain)
    app.command(epilog='Example: fabricctl maintenance host --for 30m --reason "leaf 3"')(
        maintenance
    )
    app.command(epilog="Example: fabricctl explain rail0")(explain)
    app.command(epilog="Example: fabricctl reload")(reload)
    app.add_typer(detector_app, name="detector")


def _seconds(text: str | None) -> dict[str, float]:
    return {} if text is None else {"seconds": parse_duration(text)}


def _length(answer: dict[str, Any]) -> str:
    left = answer["left_s"]
    return "until it is taken back" if left is None else f"for {age(left)}"


def _left(socket: Path) -> dict[str, Any]:
    """What carries now, what does not and why, and whose jobs run here.

    What cannot be asked is missing: the drain is done, whatever is known of the rest.
    """
    found: dict[str, Any] = {}
    with contextlib.suppress(client.DaemonError, OSError):
        links = client.request(socket, {"op": "links"})
        found["carrying"] = [link["netdev"] for link in links if link["state"] in CARRIES]
        found["not_carrying"] = {
            link["netdev"]: f"{link['state']}{f' ({why})' if (why := link['reason']) else ''}"
            for link in links
            if link["state"] not in CARRIES
        }
        answer = client.request(socket, {"op": "jobs"})
        jobs = Counter(process["job"] for process in answer["processes"])
        found["jobs"] = dict(sorted(jobs.items()))
        found["jobs_unknown"] = top.missing(answer)
    return found


def left_lines(left: dict[str, Any]) -> list[str]:
    """What is left after a drain, in sentences; ``left``: of `_left`."""
    if "carrying" not in left:
        return ["what is left is not known: fabricctl links"]
    carrying, others = left["carrying"], left["not_carrying"]
    count = len(carrying) + len(others)
    lines = [f"left: {len(carrying)} of {count} links carry: {', '.join(carrying) or 'none'}"]
    lines += [f"  {netdev} {text}" for netdev, text in others.items()]
    jobs = [
        f"{job} ({counted(count, 'process', 'processes')})"
        for job, count in left.get("jobs", {}).items()
    ]
    unknown = left.get("jobs_unknown", "")
    lines.append(f"jobs that go on over what is left: {', '.join(jobs) or 'none'}")
    return lines + ([f"  {unknown}"] if unknown else [])


def _wait_quiet(socket: Path, link: str, patience_s: float) -> tuple[bool | None, str]:
    """Wait until no job moved a byte on a link for `QUIET_S`, at most ``patience_s``.

    Returns:
        Whether none did; or None, and why that is not known: a process that was not looked at may
        move any number of bytes.
    """
    end = time.monotonic() + patience_s
    last, since = None, time.monotonic()
    while True:
        now, unknown = _moved(socket, link)
        if unknown or now != last:
            last, since = (None if unknown else now), time.monotonic()
        elif time.monotonic() - since >= QUIET_S:
            return True, ""
        if time.monotonic() >= end:
            return (None if unknown else False), unknown
        time.sleep(0.2)


def _moved(socket: Path, link: str) -> tuple[tuple[tuple[Any, ...], ...], str]:
    """What each process has moved on a link so far, and why that may not be all."""
    found = []
    answer = ask(socket, {"op": "jobs"})
    for process in answer["processes"]:
        for rail in process["rails"]:
            if rail["netdev"] == link:
                moved = (rail["tx_bytes"], rail["rx_bytes"], rail["in_flight_bytes"])
                found.append((process["pid"], process["start_ns"], *moved))
    return tuple(sorted(found)), top.missing(answer)
