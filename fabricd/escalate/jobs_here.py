"""Jobs and fences of this host: hands orders to fabric-runs, and what they say to the broker.

The one owner of the job socket, the orders in force and the fence registry.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import structlog

from fabricd.control.pace import Pace
from fabricd.escalate.fence_keeper import FenceKeeper, FenceStore
from fabricd.escalate.fences import JOB, FenceApplier, FenceRegistry
from fabricd.escalate.job_lines import encode_line
from fabricd.escalate.job_registry import JobRegistry, Run
from fabricd.escalate.job_server import JobServer, Session
from fabricd.escalate.orders import Orders
from fabricd.escalate.refusals import Refusals
from fabricd.jobs.owners import Owners
from telemetry.events import EventKind
from telemetry.messages.documents import ComputeOrder, Fence
from telemetry.messages.envelope import BadMessageError
from telemetry.service import durable

VERSION = 1
MAX_FILE = 8 << 20
REJOIN_S = 60.0
"""A fabric-run that ran before our start and has not come back by then is looked for."""

MOST_SILENT = 256
"""Hosts that one line names: with more of them silent, this host's own rails are in question."""
ROWS_RATE, ROWS_BURST = 0.1, 30
"""Timeline rows about the jobs of one user: a second, and at once."""

Record = Callable[..., None]
"""``record(kind, reason, **data)`` writes a timeline row."""


class JobsHere:
    """Runs on the event loop; nothing here waits for a disk or a socket."""

    def __init__(
        self,
        host: str,
        boot_id: str,
        directories: tuple[Path, Path],
        appliers: Sequence[FenceApplier],
        *,
        deadline_s: float,
        refusals: Refusals,
        record: Record,
        publish: Callable[[str, dict[str, Any] | None], None],
        fences_changed: Callable[[], None],
    ) -> None:
        """Prepare; `open` binds the socket.

        Args:
            host: our name.
            boot_id: of this boot.
            directories: run directory and state directory.
            appliers: that keep fenced processes out.
            deadline_s: within which a fence has to be applied, else it is reported.
            refusals: counts what is refused.
            record: writes timeline rows.
            publish: keeps the ``HostJob`` of a job at the broker; None clears it.
            fences_changed: called when another set of fences is applied.
        """
        run_dir, state_dir = directories
        self.registry = JobRegistry(Owners.of().user_of)
        self.orders = Orders()
        self._host, self._boot_id = host, boot_id
        self._refusals, self._record = refusals, record
        self._publish, self._fences_changed = publish, fences_changed
        self._rows = Pace(time.monotonic, rate=ROWS_RATE, burst=ROWS_BURST, least=1)
        store = FenceStore(state_dir / "fences.json")
        everyone = [store, *appliers]
        self.fences = FenceRegistry([one.name for one in everyone], round(deadline_s * 1e9))
        self._keeper = FenceKeeper(self.fences, everyone, self._acknowledged)
        self.server = JobServer(run_dir / "jobs.sock", self.registry, self)
        self._files = state_dir / "fences.json", state_dir / "jobs.json"
        self._saving = asyncio.Event()
        self._silent: tuple[str, ...] = ()
        self._log = structlog.get_logger()

    # -- life -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Bind the socket and take over what an earlier fabricd knew. Raises ``OSError``."""
        self.server.open()
        stored = self._read(self._files[1])
        if stored is not None:
            self._restore_jobs(stored)
        if (stored := self._read(self._files[0])) is not None:
            try:
                self.fences.restore(stored, self._present(), time.monotonic_ns())
            except BadMessageError as error:
                self._log.warning("fences not restored", error=str(error))
        self._keeper.changed()

    def _restore_jobs(self, stored: dict[str, Any]) -> None:
        try:
            self.registry.restore(stored.get("jobs"))
        except ValueError as error:
            self._log.warning("jobs not restored", error=str(error))
            return
        for run in self.registry.runs.values():
            if stored.get("boot_id") != self._boot_id:
                run.gone = run.proven = True  # No process outlives a boot.
            elif run.present and not self.server.observe(run) and self.registry.ended(run):
                self.run_gone(run)

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            data = durable.read(path, MAX_FILE)
            document = None if data is None else json.loads(data)
            if document is not None and not isinstance(document, dict):
                raise ValueError("no object")
        except (OSError, ValueError, RecursionError) as error:
            self._log.warning("not readable", file=str(path), error=str(error))
            return None
        if document is not None and document.get("version") != VERSION:
            self._log.warning("of another version", file=str(path))
            return None
        return document

    async def run(self) -> None:
        """Serve until cancelled."""
        tasks = [
            asyncio.create_task(work)
            for work in (self.server.run(), self._keeper.run(), self._save(), self._rejoin())
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _save(self) -> None:
        while True:
            await self._saving.wait()
            self._saving.clear()
            document = {
                "version": VERSION, "boot_id": self._boot_id, "jobs": self.registry.save(),
            }  # fmt: skip
            try:
                await asyncio.to_thread(
                    durable.replace_text, self._files[1], json.dumps(document), 0o600, sync=False
                )
            except OSError as error:
                self._log.error("jobs not stored", file=str(self._files[1]), error=error.strerror)
                await asyncio.sleep(REJOIN_S)
                self._saving.set()

    async def _rejoin(self) -> None:
        """Jobs of an earlier fabricd whose fabric-run nobody can observe, and that stays away.

        Their connection has ended with that fabricd, which counts as their end.
        """
        for run in list(self.registry.runs.values()):
            if run.gone:
                self._publish_run(run)
        await asyncio.sleep(REJOIN_S)
        for run in list(self.registry.runs.values()):
            if run.present and run.connection is None and not run.observed:
                run.gone = True
                self.run_gone(run)

    # -- from fabric-compute ----------------------------------------------------------------------

    def order(self, compute: str, order: ComputeOrder) -> None:
        """Take the newest order of a fabric-compute. Raises ``BadMessageError``."""
        self.fences.check(order.fences)
        if self.orders.update(compute, order):
            self._apply_orders()

    def order_cleared(self, compute: str) -> None:
        """A fabric-compute wants nothing any more; its fences hold on."""
        if self.orders.remove(compute):
            self._apply_orders()

    def stop(self, *, stopped: bool, reason: str) -> None:
        """An operator stops all action, or lets it go on."""
        if self.orders.stop(stopped=stopped, reason=reason):
            self._apply_orders()

    def _apply_orders(self) -> None:
        new = self.fences.order(self.orders.fences(), self._present(), time.monotonic_ns())
        for fence in new:
            run = self.registry.runs.get(fence.job)
            if run is not None and run.present and fence.is_of(run.uid):
                self._tell_fence(run, fence)
        if new:
            self._keeper.changed()
        for run in self.registry.runs.values():
            self._tell_orders(run)

    def _present(self) -> dict[str, int]:
        return {job: run.uid for job, run in self.registry.runs.items() if run.present}

    def _tell_fence(self, run: Run, fence: Fence) -> None:
        session = self.server.session(run.job)
        own = (fence.host, fence.incarnation) == (self._host, run.incarnation)
        if own:
            self._record(EventKind.FENCE, f"this host is fenced in job {fence.job}: "
                         f"{fence.reason or 'no reason given'}", job=fence.job, fence=fence.id,
                         incarnation=fence.incarnation)  # fmt: skip
        if session is None:
            return
        session.send(
            f"fence {fence.id}",
            encode_line("fence", id=fence.id, host=fence.host, incarnation=fence.incarnation),
        )
        if own:
            session.send("stop", encode_line("stop", reason=fence.reason or f"fence {fence.id}"))

    def _tell_orders(self, run: Run) -> None:
        session = self.server.session(run.job)
        if session is None:
            return
        for compute, order in self.orders.job_orders(run.job).items():
            if order.get("incarnation") == run.incarnation:
                line = encode_line("order", compute=compute, order=order)
                session.send(f"order {compute}", line)

    def _acknowledged(self, fence: Fence) -> None:
        self._record(
            EventKind.FENCE, f"applied: job {fence.job} on {fence.host}: "
            f"{fence.reason or 'no reason given'}", job=fence.job,
            fence=fence.id, incarnation=fence.incarnation, peer_host=fence.host,
        )  # fmt: skip
        self._fences_changed()

    def silent(self, hosts: Collection[str]) -> None:
        """These hosts are silent on all rails: fabric-runs then say at a pace how far they are."""
        self._silent = tuple(sorted(hosts))[:MOST_SILENT]
        for run in self.registry.runs.values():
            if (session := self.server.session(run.job)) is not None:
                self._tell_silent(session)

    def _tell_silent(self, session: Session) -> None:
        session.send("silent", encode_line("silent", hosts=list(self._silent)))

    def tick(self) -> None:
        """Report fences whose deadline has passed. Call it several times a second."""
        for fence, who in self.fences.late(time.monotonic_ns()):
            self._record(
                EventKind.FENCE,
                f"not applied in time: job {fence.job} on {fence.host}, by {', '.join(who)}",
                job=fence.job, fence=fence.id, incarnation=fence.incarnation,
            )  # fmt: skip

    # -- from fabric-runs (`JobOwner`) ------------------------------------------------------------

    def registered(self, run: Run, session: Session) -> None:  # noqa: D102
        session.send("welcome", encode_line("welcome", host=self._host, boot_id=self._boot_id))
        for fence in self.fences.of_job(run.job, run.uid):
            self._tell_fence(run, fence)
        self._tell_orders(run)
        if self._silent:
            self._tell_silent(session)
        self._tell_job(run, f"registered: {run.job}")
        self._saving.set()

    def document_changed(self, run: Run) -> None:  # noqa: D102
        self._publish_run(run)

    def fence_applied(self, run: Run, fence_id: str) -> None:  # noqa: D102
        for fence in self.fences.of_job(run.job, run.uid):
            if fence.id == fence_id and self.fences.applied(fence_id, JOB):
                self._acknowledged(fence)

    def run_gone(self, run: Run) -> None:  # noqa: D102
        self._tell_job(run, f"ended without leaving: {run.job}")
        self._publish_run(run)
        self._ended(run)
        for job in self.registry.forget_oldest():
            self._publish(job, None)

    def run_left(self, run: Run) -> None:  # noqa: D102
        self._tell_job(run, f"left: {run.job}")
        self._publish(run.job, None)
        self._ended(run)

    def job_line_refused(self, reason: str, detail: str) -> None:  # noqa: D102
        self._refusals.add(reason, detail)

    def _tell_job(self, run: Run, reason: str) -> None:
        """A timeline row, unless its user has had too many: nobody may push out other rows."""
        if run.uid and self._rows.delay_s(self.registry.user_of(run.uid), 1):
            self._refusals.add("rows", f"uid {run.uid}: {reason}")
            return
        self._record(EventKind.JOB, reason, job=run.job, incarnation=run.incarnation,
                     uid=run.uid, pid=run.pid)  # fmt: skip

    def _ended(self, run: Run) -> None:
        for fence in self.fences.job_ended(run.job, run.uid):
            self._acknowledged(fence)
        self._saving.set()

    def _publish_run(self, run: Run) -> None:
        if (state := run.state()) is not None:
            self._publish(run.job, state)
