"""What an operator says: promote, demote, drain, undrain, confirm-…, stop, resume."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from compute.cli.base import DEFAULT_CONFIG, ConfigFile, Json, fail, load_config, put, put_json
from compute.config import Config
from compute.core import Mode
from compute.operator_files import (
    MODES,
    Confirmed,
    is_host,
    read_confirmed,
    read_drained,
    write_confirmed,
    write_drained,
    write_mode,
    write_stop,
)
from telemetry.broker.once import publish_once
from telemetry.broker.settings import BrokerSettingsError
from telemetry.messages.envelope import Message, Sender, encode
from telemetry.messages.topics import Kind, Topic

MESSAGE_S = 10.0

Reason = Annotated[str, typer.Option("--reason", help="Why, for the ledger and colleagues.")]
Everywhere = Annotated[
    bool,
    typer.Option("--everywhere", help="Tell all fabric-computes, by a retained message."),
]
Certificate = Annotated[
    Path | None, typer.Option("--cert", help="An operator's certificate, for --everywhere.")
]
Key = Annotated[Path | None, typer.Option("--key", help="The key of that certificate.")]


def promote(
    mode: Annotated[str, typer.Argument(help="observe or migrate.")],
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Set what this fabric-compute may do: observe (say it only), or migrate (do it)."""
    for one in MODES:
        if one == mode:
            _set_mode(load_config(config), one, as_json=as_json)
            return
    raise typer.BadParameter(f'"{mode}"; allowed: {", ".join(MODES)}')


def demote(config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Back to observe: say what would be done, and do nothing."""
    _set_mode(load_config(config), "observe", as_json=as_json)


def _set_mode(config: Config, mode: Mode, *, as_json: bool) -> None:
    try:
        write_mode(config.mode_path, mode)
    except OSError as error:
        fail(f"{config.mode_path}: {error.strerror}")
    if as_json:
        put_json({"name": config.name, "mode": mode})
    else:
        put(f"{config.name}: mode {mode}")


def drain(
    host: Annotated[str, typer.Argument(help="The host whose ranks shall move.")],
    config: ConfigFile = DEFAULT_CONFIG,
    to: Annotated[str, typer.Option("--to", help="The spare that takes over; default: any.")] = "",
    as_json: Json = False,
) -> None:
    """Move the ranks of a host to a spare while it still runs, and give it no other."""
    for name in [host, *([to] if to else [])]:
        if not is_host(name):
            raise typer.BadParameter(f'"{name}" is no name of a host')
    _change_drained(load_config(config), host, to, as_json=as_json)


def undrain(
    host: Annotated[str, typer.Argument(help="The host that may hold ranks again.")],
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Take back a drain; ranks that have moved stay where they are."""
    _change_drained(load_config(config), host, None, as_json=as_json)


def confirm_lost(
    host: Annotated[str, typer.Argument(help="The host that is off, as you know for sure.")],
    config: ConfigFile = DEFAULT_CONFIG,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Say that a host is off for good where no majority can tell: its ranks move to spares.

    For a half of a job that is gone (a power feed, a room). Never for a host that may still run:
    fabric-compute takes your word as proof. It refuses a host that is connected to the broker.
    """
    _confirm(config, host, Confirmed("lost", time.time(), reason), as_json=as_json)


def confirm_repaired(
    host: Annotated[str, typer.Argument(help="The host that is repaired.")],
    config: ConfigFile = DEFAULT_CONFIG,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Let places of ranks on a host be used again that were left out, for whatever reason."""
    _confirm(config, host, Confirmed("repaired", time.time(), reason), as_json=as_json)


def confirm_broken(
    host: Annotated[str, typer.Argument(help="The host on which a GPU is broken.")],
    ranks: Annotated[
        list[int], typer.Option("--rank", min=0, help="The rank that runs there; may be repeated.")
    ],
    config: ConfigFile = DEFAULT_CONFIG,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Say that what a rank runs on is broken: that rank moves to a spare, the others stay.

    For a GPU that your own checks name. The rank moves between two steps while it lives, and with
    the next loss where it is dying. It comes back there after confirm-repaired.
    """
    said = Confirmed("broken", time.time(), reason, tuple(sorted(set(ranks))))
    _confirm(config, host, said, as_json=as_json)


def _confirm(config: Path, host: str, said: Confirmed, *, as_json: bool) -> None:
    if not is_host(host):
        raise typer.BadParameter(f'"{host}" is no name of a host')
    path = load_config(config).confirmed_path
    try:
        known = read_confirmed(path)
        if (before := known.get(host)) is not None and before.what == said.what == "broken":
            said = replace(said, ranks=tuple(sorted({*before.ranks, *said.ranks})))
        write_confirmed(path, known | {host: said})
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except ValueError as error:
        fail(f"{path}: {error}")
    if as_json:
        put_json({"host": host, "confirmed": said.what})
    else:
        put(f"{host}: confirmed {said.what}; fabric-compute explain {host} says what follows")


def _change_drained(config: Config, host: str, to: str | None, *, as_json: bool) -> None:
    path = config.drained_path
    try:
        drained = read_drained(path)
        if to is None and host not in drained:
            fail(f"{host} is not drained")
        rest = {name: one for name, one in drained.items() if name != host}
        write_drained(path, rest if to is None else rest | {host: to})
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except ValueError as error:
        fail(f"{path}: {error}")
    if as_json:
        put_json({"host": host, "drained": to is not None, "to": to or ""})
    else:
        put(f"{host}: {'is to be drained' if to is not None else 'may hold ranks again'}")


def stop(
    config: ConfigFile = DEFAULT_CONFIG,
    reason: Reason = "",
    everywhere: Everywhere = False,
    cert: Certificate = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """End all action within 2 s: of this fabric-compute, or of all."""
    loaded = load_config(config)
    if everywhere:
        _tell_all(loaded, cert, key, stopped=True, reason=reason)
    else:
        path = Path(loaded.stop_file)
        try:
            write_stop(path, reason)
        except OSError as error:
            fail(f"{path}: {error.strerror}")
    _said(loaded, everywhere=everywhere, stopped=True, as_json=as_json)


def resume(
    config: ConfigFile = DEFAULT_CONFIG,
    everywhere: Everywhere = False,
    cert: Certificate = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Take back a stop. Stop file and stop message count each by itself."""
    loaded = load_config(config)
    if everywhere:
        _tell_all(loaded, cert, key, stopped=False, reason="")
    else:
        path = Path(loaded.stop_file)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            fail(f"{path}: {error.strerror}")
    _said(loaded, everywhere=everywhere, stopped=False, as_json=as_json)


def _said(config: Config, *, everywhere: bool, stopped: bool, as_json: bool) -> None:
    who = "all fabric-computes" if everywhere else config.name
    if as_json:
        put_json({"who": "all" if everywhere else config.name, "stopped": stopped})
    else:
        put(f"{who}: {'stopped' if stopped else 'resumed'}")


def _tell_all(
    config: Config, cert: Path | None, key: Path | None, *, stopped: bool, reason: str
) -> None:
    table = config.broker
    if (cert is None) != (key is None):
        raise typer.BadParameter("--cert and --key go together")
    if cert is not None and key is not None:
        table = table.model_copy(update={"cert_file": str(cert), "key_file": str(key)})
    elif table.cert_file is not None:
        # With that of fabric-compute itself the broker would end fabric-compute's connection.
        raise typer.BadParameter("give an operator's certificate with --cert and --key")
    topic = Topic(Kind.STOP)
    sender = Sender("operator", uuid.uuid4().hex)
    payload = encode(Message(topic, sender, 1, {"stopped": stopped, "reason": reason[:2000]}))
    client_id = f"fabric-operator.{os.getpid()}.{sender.incarnation[:8]}"
    try:
        asyncio.run(publish_once(table.settings, client_id, topic, payload, MESSAGE_S))
    except (BrokerSettingsError, OSError) as error:
        fail(f"the broker did not take the message: {error}")
