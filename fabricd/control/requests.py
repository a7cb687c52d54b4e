"""What can be asked of the daemon over its control socket: operation → handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fabricd.config.loader import ConfigError
from fabricd.config.netdev_names import kernel_name
from fabricd.config.source import ConfigSource
from fabricd.control import job_requests
from fabricd.control.access import Caller
from fabricd.control.server import Document, Handler, ListInParts, RequestError
from fabricd.control.timeline_requests import TimelineReader, query_rows, timeline_query
from fabricd.operate.manager import (
    OverrideChange,
    OverrideError,
    OverrideManager,
    SteeredHost,
)
from fabricd.operate.overrides import HOST
from fabricd.process.blocking_call import started_executor
from fabricd.process.cpu_meter import charged
from fabricd.runtime.host import Host
from fabricd.steer.modes import Mode
from fabricd.views import report
from fabricd.views.explain import explain
from fabricd.views.history import condense
from fabricd.views.services import Services
from telemetry.events import EventKind

if TYPE_CHECKING:
    from fabricd.escalate.service import Escalation

CHANGING = frozenset(
    {"promote", "reload", "drain", "undrain", "maintenance", "maintenance_end", "detector"}
)
"""These take an administrator; the rest only reads."""
LARGE = frozenset(
    {
        "config", "timeline", "jobs", "explain", "training_jobs", "migrations", "explain_host",
        "explain_job",
    }
)  # fmt: skip
"""These read files or make long answers."""
PAUSE_S = 0.002
"""Between two parts of a long list: the threads that read share the interpreter with the loop."""
READ_THREADS = 2
"""Not the loop's own executor: what strangers ask must not make fences and stores wait."""

T = TypeVar("T")
EXPLAIN_ROWS, EXPLAIN_READ = 200, 600
"""Told of a link, and read for it: a burst of flaps is one row."""
EXPLAINED = [kind.value for kind in EventKind if kind is not EventKind.PLUGIN]
"""Kinds told of a link: what jobs' pages say would hide them."""


class Requests:
    """The handlers of one daemon."""

    def __init__(
        self,
        host: Host,
        services: Services,
        source: ConfigSource,
        database: Path,
        reload: Callable[[str], Awaitable[list[str]]],
    ) -> None:
        """Keep what the handlers need.

        Args:
            host: who is asked.
            services: around it.
            source: its configuration.
            database: of the timeline.
            reload: reloads on behalf of somebody and returns the keys that changed; raises
                `ConfigError`.
        """
        self._host, self._services = host, services
        self._source = source
        self._database = database
        self._reload = reload
        self._executor = started_executor(READ_THREADS)

    def handlers(self) -> dict[str, Handler]:
        """By ``op``."""
        return {
            "status": self.status,
            "links": self.links,
            "config": self.config,
            "timeline": self.timeline,
            "jobs": self.jobs,
            "explain": self.explain,
            "observations": self.observations,
            "training_jobs": self.training_jobs,
            "migrations": self.migrations,
            "explain_host": self.explain_host,
            "explain_job": self.explain_job,
            "promote": self.promote,
            "reload": self.reload,
            "drain": self.drain,
            "undrain": self.undrain,
            "maintenance": self.maintenance,
            "maintenance_end": self.maintenance_end,
            "detector": self.detector,
        }

    async def status(self, _request: Document, _caller: Caller) -> Any:  # noqa: ANN401, D102
        return report.status(self._host, self._services) | {"config": self._source.document()}

    async def links(self, _request: Document, _caller: Caller) -> Any:  # noqa: ANN401, D102
        return report.links(self._host)

    async def config(self, _request: Document, _caller: Caller) -> Any:  # noqa: ANN401, D102
        # A long list of peers takes a tenth of a second.
        config = await self._read(lambda: self._source.config.model_dump(mode="json"))
        return self._source.document() | {"config": config}

    async def timeline(self, request: Document, _caller: Caller) -> Any:  # noqa: ANN401, D102
        query = timeline_query(request)
        found = await self._read(lambda: TimelineReader(self._database, query))
        return ListInParts(self._parts(found))

    async def _parts(self, found: TimelineReader) -> AsyncGenerator[bytes, None]:
        """The rows by and by; another thread may read between two parts."""
        try:
            while part := await self._read(found.next_part):
                yield part
                await asyncio.sleep(PAUSE_S)
        finally:
            found.close()

    async def _read(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, charged(work))

    async def jobs(self, _request: Document, _caller: Caller) -> Any:  # noqa: ANN401, D102
        try:
            found = await self._host.jobs.live()
        except TimeoutError:
            raise RequestError("the stats directory does not answer") from None
        delay = self._host.detectors.delay
        return found | {"slow": delay.slow_texts(), "slow_claims": delay.slow_claims()}

    async def explain(self, request: Document, _caller: Caller) -> Any:  # noqa: ANN401
        """All that is known of a link, and the rule that decided."""
        netdev = _device(request, "link")
        try:
            document = explain(self._host, netdev, time.monotonic_ns())
        except KeyError as error:
            raise RequestError(str(error.args[0])) from error
        query: dict[str, Any] = {"link": netdev, "limit": EXPLAIN_READ, "kind": EXPLAINED}
        try:
            rows = await self._read(lambda: query_rows(self._database, query))
        except RequestError as error:
            return document | {"history": [], "history_error": str(error)}
        return document | {"history": condense(rows)[-EXPLAIN_ROWS:]}

    async def observations(self, _request: Document, _caller: Caller) -> Any:  # noqa: ANN401
        """What this host and its neighbours see, for ``fabricctl locate``."""
        host = self._host
        return await host.detectors.localization.observations(
            host.prober.feed, host.engine, host.prober.tables.views() or []
        )

    async def training_jobs(self, _request: Document, caller: Caller) -> Any:  # noqa: ANN401
        """Jobs of fabric-runs and of the plugin, for ``fabricctl jobs``."""
        live = await self.jobs({}, caller)
        return job_requests.jobs(self._host, self._services.escalation(), live)

    async def migrations(self, request: Document, _caller: Caller) -> Any:  # noqa: ANN401
        """Takeovers of jobs of this host, newest first."""
        limit = request.get("limit", 50)
        if type(limit) is not int or not 0 <= limit <= job_requests.MOST_MIGRATIONS:
            raise RequestError(f"limit must be from 0 to {job_requests.MOST_MIGRATIONS}")
        escalation = self._escalation()
        query = {"kind": "migration", "limit": limit}
        rows = await self._read(lambda: query_rows(self._database, query))
        return job_requests.migrations(self._host, escalation, rows, limit)

    async def explain_host(self, request: Document, _caller: Caller) -> Any:  # noqa: ANN401
        """Evidence, votes, rule and fences of a host."""
        name = _text(request, "host")
        escalation = self._escalation()
        rows: list[dict[str, Any]] = []
        for kind in job_requests.HISTORY:
            query = {"kind": kind, "limit": job_requests.HISTORY_READ}
            rows += await self._read(partial(query_rows, self._database, query))
        rows.sort(key=lambda row: row["wall_ns"])
        return job_requests.explain_host(self._host, escalation, name, rows)

    async def explain_job(self, request: Document, _caller: Caller) -> Any:  # noqa: ANN401
        """Whether a job that uses the plugin moves bytes now, and what may hold it up."""
        name = _text(request, "job")
        uid = request.get("uid")
        if uid is not None and (isinstance(uid, bool) or not isinstance(uid, int)):
            raise RequestError("uid must be an integer")
        before = await self.jobs({}, _caller)
        job_requests.check_job(name, before, uid)
        await asyncio.sleep(job_requests.LOOK_S)
        after = await self.jobs({}, _caller)
        return job_requests.explain_job(self._host, name, before, after, uid)

    async def promote(self, request: Document, caller: Caller) -> Any:  # noqa: ANN401
        """Raise or lower the mode of the host or of a group."""
        host, group = self._host, _text(request, "group", "")
        known = {link.group for link in host.config.links if link.group}
        if group and group not in known:
            allowed = ", ".join(sorted(known)) or "none: no link has a group"
            raise RequestError(f'no group "{group[:32]}"; allowed: {allowed}')
        try:
            mode = Mode.parse(_text(request, "mode", ""))
            host.publisher.modes.promote(mode, group)
        except (ValueError, OSError) as error:
            raise RequestError(str(error)) from error
        what = f"group {group} " if group else ""
        host.publisher.mode_changed(f"{what}promoted to {mode.name.lower()} by uid {caller.uid}")
        return {
            "promoted": mode.name.lower(),
            "mode": host.publisher.modes.of(group).name.lower(),
            "group": group,
            "groups": report.group_modes(host),
            "stop_file": host.publisher.modes.stopped,
        }

    async def reload(self, _request: Document, caller: Caller) -> Any:  # noqa: ANN401
        """As SIGHUP, but with an answer."""
        try:
            changed = await self._reload(_by(caller))
        except ConfigError as error:
            raise RequestError(
                "refused, the old configuration stays:\n"
                + "\n".join(str(problem) for problem in error.problems[:50])
            ) from error
        return self._source.document() | {"changed": changed}

    async def drain(self, request: Document, caller: Caller) -> Any:  # noqa: ANN401, D102
        return self._override(
            lambda manager, host: manager.drain(
                host, _device(request, "link"), seconds=_seconds(request),
                reason=_text(request, "reason", ""), by=_by(caller),
            )
        )  # fmt: skip

    async def undrain(self, request: Document, caller: Caller) -> Any:  # noqa: ANN401, D102
        link = _device(request, "link")
        return self._override(lambda manager, host: manager.undrain(host, link, _by(caller)))

    async def maintenance(self, request: Document, caller: Caller) -> Any:  # noqa: ANN401, D102
        seconds = _seconds(request)
        if seconds is None:
            raise RequestError("a maintenance window needs an end: seconds")
        return self._override(
            lambda manager, host: manager.open_window(
                host, _device(request, "target"), seconds=seconds,
                reason=_text(request, "reason", ""), by=_by(caller),
            )
        )  # fmt: skip

    async def maintenance_end(  # noqa: D102
        self, request: Document, caller: Caller
    ) -> Any:  # noqa: ANN401
        target = _device(request, "target")
        return self._override(lambda manager, host: manager.close_window(host, target, _by(caller)))

    async def detector(self, request: Document, caller: Caller) -> Any:  # noqa: ANN401
        """Switch one on or off."""
        name, on = _text(request, "name"), request.get("on")
        if on is True:
            return self._override(
                lambda manager, host: manager.detector_on(host, name, _by(caller))
            )
        if on is not False:
            raise RequestError("on must be true or false")
        return self._override(
            lambda manager, host: manager.detector_off(
                host, name, seconds=_seconds(request), reason=_text(request, "reason", ""),
                by=_by(caller),
            )
        )  # fmt: skip

    def _override(
        self, ask: Callable[[OverrideManager, SteeredHost], OverrideChange]
    ) -> dict[str, Any]:
        operator = self._host.operator
        try:
            change = ask(operator.manager, operator.host)
        except OverrideError as error:
            raise RequestError(str(error)) from error
        return operator.manager.describe(operator.apply(change), time.monotonic_ns())

    def _escalation(self) -> Escalation:
        return job_requests.required(self._services.escalation())


def _by(caller: Caller) -> str:
    return f"uid {caller.uid}"


def _text(request: Document, key: str, default: str | None = None) -> str:
    value = request.get(key, default)
    if not isinstance(value, str):
        raise RequestError(f"{key} must be text")
    return value


def _device(request: Document, key: str) -> str:
    """Name of a link as the kernel knows it, however it was called; or the word for the host."""
    name = _text(request, key)
    return name if name == HOST else kernel_name(name)


def _seconds(request: Document) -> float | None:
    value = request.get("seconds")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError("seconds must be a number")
    try:
        return float(value)
    except OverflowError:
        raise RequestError("seconds is out of range") from None
