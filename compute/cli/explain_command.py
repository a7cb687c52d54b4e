"""``fabric-compute explain``: of a host, or of a job."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from compute.cli.base import (
    DEFAULT_CONFIG,
    ConfigFile,
    Json,
    fail,
    load_config,
    open_store,
    put,
    put_error,
)
from compute.cli.base import put_json as put_as_json
from compute.config import Config
from compute.explain import Operators, explain_job
from compute.explain import explain as explain_host
from compute.operator_files import read_drained, read_mode, read_stop
from compute.store import StoreError

HISTORY = 50
LISTS = {
    "silent": "silent to", "heard": "heard by", "abstained": "abstained",
    "missed_by": "missed by agents on", "heard_by": "heard by agents on",
    "acknowledged": "fence applied on",
}  # fmt: skip


def explain(
    name: Annotated[str, typer.Argument(metavar="HOST|JOB", help="Name of a host or job.")],
    config: ConfigFile = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Why a host was fenced and its ranks moved, or why not; how a job is, and who slows it."""
    loaded = load_config(config)
    store = open_store(loaded)
    try:
        jobs, entries = store.jobs(), store.mentions(json.dumps(name), HISTORY)
        host = explain_host(name, jobs, entries, _operators(loaded))
        job = explain_job(name, jobs, entries) if host is None else None
    except (StoreError, ValueError) as error:
        fail(str(error))
    finally:
        store.close()
    if host is None and job is None:
        fail(f"{name:.80}: it has a part in no job, and the ledger does not name it")
    if as_json:
        put_as_json(host or job)
        return
    for line in lines(host) if host else job_lines(job or {}):
        put(line)


def _operators(config: Config) -> Operators:
    mode, problem = read_mode(config.mode_path)
    try:
        drained = read_drained(config.drained_path)
    except (OSError, ValueError) as error:
        fail(f"{config.drained_path}: {error}")
    if problem:
        put_error(f"the mode file cannot be used, so the mode is observe: {problem}")
    stopped, why = read_stop(Path(config.stop_file))
    maintenance = config.in_maintenance(datetime.now(UTC))
    return Operators(mode, why if stopped else "", drained, maintenance)


def lines(found: dict[str, Any]) -> list[str]:
    """The answer for people."""
    said = [f"host {found['host']}, mode {found['mode']}"]
    if found["stopped"]:
        said.append(f"  stopped: {found['stopped']}")
    if found["drained"]:
        said.append("  drained" + (f" to {found['replacement']}" if found["replacement"] else ""))
    if found["maintenance"]:
        said.append("  in maintenance")
    for job in found["jobs"]:
        said += _job_lines(job)
    if not found["jobs"]:
        said.append("  it has a part in no job now")
    if found["history"]:
        said.append("ledger")
    said += [_entry_line(one) for one in found["history"]]
    return said


def job_lines(found: dict[str, Any]) -> list[str]:
    """What is known of a job, for people."""
    said = [f"job {found['job']}: {found['phase']}, generation {found['generation']}"]
    if found["reason"]:
        said.append(f"  {found['reason']}")
    hosts: dict[str, list[str]] = {}
    for rank, host in found["ranks"].items():
        hosts.setdefault(host, []).append(rank)
    said += [f"  {host}: ranks {', '.join(ranks)}" for host, ranks in hosts.items()]
    said += [f"  {one['text']}" for one in found["slow_ranks"]]
    said += [f"  {one['host']}: {one['rule']} ({one['reason']})" for one in found["evidence"]]
    if found["history"]:
        said.append("ledger")
    return said + [_entry_line(one) for one in found["history"]]


def _job_lines(job: dict[str, Any]) -> list[str]:
    ranks = ", ".join(map(str, job["ranks"])) or "none"
    said = [
        f"job {job['job']}: {job['answer']}",
        f"  now: {job['phase']}, generation {job['generation']}, its ranks here: {ranks}; "
        f"as of {_time(job['time'])}",
    ]
    said += [f"  {one['text']}" for one in job["slow_ranks"]]
    evidence = job["evidence"]
    if evidence is None:
        return said
    said += [f"  rule: {evidence['rule']}", f"  evidence: {evidence['reason']}"]
    for name, label in LISTS.items():
        if count := evidence["counts"].get(name, 0):
            names = evidence[name]
            more = f", and {count - len(names)} more" if count > len(names) else ""
            said.append(f"  {label}: {', '.join(names)}{more}")
    if evidence["last_will"]:
        said.append("  the broker has published its last will")
    if evidence["fence"]:
        said.append(f"  fence: {evidence['fence']}")
    return said


def _entry_line(one: dict[str, Any]) -> str:
    fields = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in one["fields"].items()
        if value not in ("", None, [])
    }
    text = "; ".join(f"{name} {value}" for name, value in fields.items())
    return f"  {one['number']}  {_time(one['time'])}  {one['kind']}: {text}"


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
