"""``fabric-compute jobs``."""

from __future__ import annotations

from datetime import UTC, datetime

from compute.cli.base import (
    DEFAULT_CONFIG,
    ConfigFile,
    Json,
    load_config,
    open_store,
    put,
    put_json,
)
from compute.cli.base import table as put_table


def jobs(config: ConfigFile = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """The jobs as this fabric-compute last stored them."""
    store = open_store(load_config(config))
    try:
        found = store.jobs()
    finally:
        store.close()
    if as_json:
        put_json([job.model_dump(mode="json") | {"time": wall} for job, wall in found])
        return
    if not found:
        put("no jobs")
        return
    rows = [("job", "phase", "generation", "ranks", "since (UTC)", "reason")]
    for job, wall in found:
        since = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S")
        rows.append(
            (job.job, job.phase, str(job.generation), str(len(job.ranks)), since, job.reason)
        )
    put_table(rows)
    for job, _ in found:
        for one in job.slow_ranks:
            put(f"job {job.job}: {one.text}")
