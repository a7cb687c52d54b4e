"""``fabric-compute ledger verify|export|head`` and ``fabric-compute slo report``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from compute import slo
from compute.cli.base import (
    DEFAULT_CONFIG,
    ConfigFile,
    Json,
    fail,
    load_config,
    open_store,
    put,
    put_json,
)
from compute.cli.base import table as put_table
from compute.config import Config
from compute.failures import Failure, failure_of
from compute.ledger import Entry, Head, canonical, verify
from compute.signatures import KeyFileError, PublicKey, load_public, public_file
from compute.store import Store, StoreError
from telemetry.service import durable

app = typer.Typer(no_args_is_help=True, help="The ledger of all decisions.")
slo_app = typer.Typer(no_args_is_help=True, help="Failures that cost no progress.")

_HEAD_BYTES = 1024 * 1024
_LINE = 16 * 1024 * 1024
"""Characters of an exported entry: a file of somebody else may have one line alone."""
LedgerFile = Annotated[
    Path | None,
    typer.Option("--file", help="A ledger that was exported; default: the one of the service."),
]


@app.command("verify", epilog="Example: fabric-compute ledger verify --head yesterday.json")
def verify_command(
    config: ConfigFile = DEFAULT_CONFIG,
    file: LedgerFile = None,
    head: Annotated[
        list[Path] | None,
        typer.Option("--head", help="A head that was published earlier; may be given again."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Public key; default: beside the private one.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Without a signed head to compare with: status 1, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the hash chain and all signed heads; status 1 and the first wrong entry if not.

    Without any head there is nothing to compare with: then the ledger may have been cut off, or
    emptied, and the verdict is "unproved".
    """
    loaded = load_config(config)
    public = _public_key(loaded, key)
    published = [_read_head(path) for path in head or []]
    store = None if file else open_store(loaded)
    try:
        entries: Iterable[Entry] = _read_entries(file) if file else _stored(store)
        heads = published if store is None else [*store.heads(), *published]
        result = verify(entries, heads, public)
    except (StoreError, ValueError) as error:
        fail(str(error))
    finally:
        if store is not None:
            store.close()
    if as_json:
        put_json(
            {
                "ok": not result.wrong,
                "proved": result.proved,
                "entries": result.entries,
                "heads": result.heads,
                "key": public.key_id,
                "wrong": list(result.wrong),
            }
        )
    else:
        for line in result.wrong:
            put(line)
        verdict = "WRONG" if result.wrong else "ok" if result.proved else "UNPROVED"
        heads_text = "1 signed head" if result.heads == 1 else f"{result.heads} signed heads"
        compared = heads_text if result.heads else "no signed head to compare with"
        put(f"{verdict}: {result.entries} entries, {compared}")
    if result.wrong or (strict and not result.proved):
        raise typer.Exit(1)


@app.command("export", epilog="Example: fabric-compute ledger export > ledger.jsonl")
def export(config: ConfigFile = DEFAULT_CONFIG) -> None:
    """All entries, one JSON object a line: what ``verify --file`` reads."""
    store = open_store(load_config(config))
    try:
        for entry in store.entries():
            put(canonical({"number": entry.number, "line": entry.line, "hash": entry.hash}))
    except StoreError as error:
        fail(str(error))
    finally:
        store.close()


@app.command("head", epilog="Example: fabric-compute ledger head > head.json")
def head_command(config: ConfigFile = DEFAULT_CONFIG) -> None:
    """The newest signed head. Keep it elsewhere: it shows later whether the end was cut off."""
    store = open_store(load_config(config))
    try:
        heads = store.heads()
    except StoreError as error:
        fail(str(error))
    finally:
        store.close()
    if not heads:
        fail("no signed head yet")
    put(heads[-1].to_json())


@slo_app.command("report", epilog="Example: fabric-compute slo report --json")
def report(
    config: ConfigFile = DEFAULT_CONFIG,
    file: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """How many failures lost no step, and with 95 % confidence how many at least."""
    store = None if file else open_store(load_config(config))
    try:
        made = slo.report(_failures(_read_entries(file) if file else _stored(store)))
    except (StoreError, ValueError) as error:
        fail(str(error))
    finally:
        if store is not None:
            store.close()
    if as_json:
        put_json(made.as_json())
        return
    rows = [("failures", "number", "no step lost", "at least", "verdict")]
    for share in made.shares:
        least = slo.lower_bound(share.kept, share.failures)
        rows.append(
            (
                share.name,
                str(share.failures),
                str(share.kept),
                f"{100 * least:.1f} %",
                share.verdict,
            )
        )
    put_table(rows)
    put(
        f"objective: {100 * slo.OBJECTIVE:g} % of all failures lose no step, "
        f"with {100 * slo.CONFIDENCE:g} % confidence: {made.verdict}"
    )
    median, longest = slo.quantile(made.pauses_s, 0.5), made.pauses_s[-1:] or (None,)
    if median is not None:
        put(
            f"pause: median {median:.3f} s, longest {longest[0]:.3f} s; "
            f"{made.steps_lost} steps and {made.gpu_seconds:.0f} GPU-seconds lost"
        )


def _public_key(config: Config, key: Path | None) -> PublicKey:
    path = key or public_file(config.ledger_key)
    try:
        return load_public(path)
    except KeyFileError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def _stored(store: Store | None) -> Iterator[Entry]:
    assert store is not None
    yield from store.entries()


def _read_head(path: Path) -> Head:
    try:
        text = durable.require_text(path, _HEAD_BYTES)
        event = json.loads(text)
        if isinstance(event, dict) and "specversion" in event:  # as the broker has it
            text = canonical(event.get("data"))
        return Head.from_json(text)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except (ValueError, RecursionError) as error:
        fail(f"{path}: {error}")


def _read_entries(path: Path) -> Iterator[Entry]:
    """Raises ``ValueError`` for a line that is no exported entry."""
    try:
        with path.open(encoding="utf-8") as file:
            for number in itertools.count(1):
                text = file.readline(_LINE + 1)
                if not text:
                    return
                if len(text) > _LINE:
                    raise ValueError(f"{path}:{number}: longer than {_LINE} characters")
                yield _parse_entry(text, f"{path}:{number}")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def _parse_entry(text: str, where: str) -> Entry:
    try:
        data = json.loads(text)
        number, line, digest = data["number"], data["line"], data["hash"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{where}: no exported entry") from None
    if type(number) is not int or not isinstance(line, str) or not isinstance(digest, str):
        raise ValueError(f"{where}: no exported entry")
    return Entry(number, line, digest)


def _failures(entries: Iterable[Entry]) -> Iterator[Failure]:
    for entry in entries:
        record = entry.record
        kind, fields = record.get("kind"), record.get("fields")
        if not isinstance(kind, str) or not isinstance(fields, dict):
            raise ValueError(f"entry {entry.number}: no record; see fabric-compute ledger verify")
        if (failure := failure_of(kind, fields)) is not None:
            yield failure
