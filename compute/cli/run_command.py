"""``fabric-compute run`` and ``check``."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import uuid
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from compute.cli.base import (
    DATABASE,
    DEFAULT_CONFIG,
    EXIT_USAGE,
    ConfigFile,
    Json,
    fail,
    put,
    put_json,
)
from compute.config import Config, load
from compute.core import Core
from compute.decide.decider import Decider
from compute.decide.policy import Policy
from compute.service import Service
from compute.signatures import KeyFileError, PrivateKey, load_or_create
from compute.store import Store, StoreError
from telemetry.messages.envelope import Sender
from telemetry.service import durable, logs
from telemetry.service.config_errors import ConfigError
from telemetry.timeline import boot_id

LOG_STYLES = ("auto", "logfmt", "json")


def run(
    config: ConfigFile = DEFAULT_CONFIG,
    log_format: Annotated[str, typer.Option(help="auto, logfmt or json.")] = "auto",
) -> None:
    """Run the service until SIGTERM."""
    if log_format not in LOG_STYLES:
        raise typer.BadParameter(f'"{log_format}"; allowed: {", ".join(LOG_STYLES)}')
    try:
        loaded = load(config)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    logs.setup(style=log_format)
    try:
        serve(loaded)
    except (StoreError, KeyFileError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def serve(config: Config) -> None:
    """The service, until SIGTERM or SIGINT.

    Raises:
        StoreError, KeyFileError: the state cannot be used.
        OSError: a file or the metrics port cannot be had.
    """
    state = Path(config.state_dir)
    state.mkdir(mode=0o750, exist_ok=True)
    lock = durable.open_lock(state / "lock")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(0, "another fabric-compute uses this directory", str(state)) from None
        key = load_or_create(config.ledger_key)
        store = Store(state / DATABASE)
        try:
            core = Decider(config.name, policy_of(config))
            asyncio.run(_serve(config, core, store, key))
        finally:
            store.close()
    finally:
        os.close(lock)


async def _serve(config: Config, core: Core, store: Store, key: PrivateKey) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sender = Sender(boot_id(), uuid.uuid4().hex)
    await Service(config, core, store, sender, key, program_version()).run(stop)


def policy_of(config: Config) -> Policy:
    """The limits of the configuration, as the core takes them."""
    known = {one.name for one in fields(Policy)}
    values = {k: v for k, v in config.policy.model_dump().items() if k in known}
    return Policy(**values)


def program_version() -> str:
    """Of the installed distribution."""
    try:
        return version("fabricd")
    except PackageNotFoundError:  # run from a tree that is not installed
        return "0+unknown"


def check(config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Validate the configuration: every problem with its line; status 2 when there is one."""
    try:
        loaded = load(config)
    except ConfigError as error:
        if not as_json:
            fail(str(error), EXIT_USAGE)
        problems = [
            {"file": one.file, "line": one.line, "key": one.key, "text": one.text}
            for one in error.problems
        ]
        put_json({"ok": False, "problems": problems})
        raise typer.Exit(EXIT_USAGE) from None
    if as_json:
        put_json({"ok": True, "config": loaded.model_dump(mode="json")})
    else:
        put(f"{config}: ok")
