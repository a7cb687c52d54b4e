"""What Prometheus reads of a fabric-compute, and the HTTP endpoint that serves it.

The endpoint also gives the newest signed head of the ledger (``/ledger/head``) and the public key
that verifies it (``/ledger/key``): what is fetched from here is the head that was published.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from compute.board import JobBoard, JobView
from compute.failures import CLASSES, OUTCOMES, Failure
from compute.intake import Intake
from compute.operator_files import MODES
from fabric_train.messages.documents import PHASES
from telemetry.http_server import Handler, Reply, Request
from telemetry.service.shown import escaped

PREFIX = "fabric_compute"
CYCLE_S = 10.0
PAUSES_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)


_JOB_GAUGES: dict[str, tuple[str, Callable[[JobView], float]]] = {
    "job_generation": ("Newest generation.", lambda view: view.state.generation),
    "job_ranks": ("Ranks.", lambda view: view.world),
    "job_spares": ("Warm processes without a rank.", lambda view: view.spares),
    "job_protected": ("1: any one process can be replaced.", lambda view: view.protected),
    "job_held": ("1: it waits for what it needs.", lambda view: view.state.phase == "held"),
}


@dataclass
class Figures:
    """Counts and states of the service itself. The service writes, the endpoint reads."""

    name: str
    version: str
    mode: str = "observe"
    stopped: bool = False
    connected: bool = False
    decisions: int = 0
    decision_s: float = 0.0
    cycle_wall_s: float = 0.0
    cycle_at: float = 0.0
    """Monotonic seconds; a cycle is made whether or not anything is decided in it."""
    fences: int = 0
    orders: int = 0
    superseded: int = 0
    store_failures: int = 0
    decision_failures: int = 0
    ledger_entries: int = 0
    head_wall_s: float = 0.0
    ledger_lost: int = 0
    head: str = ""
    key_pem: str = ""
    lost_steps: int = 0
    recoveries: Counter[tuple[str, str]] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    oversize_bytes: dict[str, int] = field(default_factory=dict)
    ids_bound: bool | None = None
    reserve: bool = False
    events_left_out: int = 0
    cleared: Mapping[str, int] = field(default_factory=dict)
    records_left_out: int = 0


class ComputeMetrics(Collector):
    """All metrics of one fabric-compute."""

    def __init__(self, figures: Figures, board: JobBoard, intake: Intake) -> None:
        self._figures, self._board, self._intake = figures, board, intake
        self.registry = CollectorRegistry()
        self._pauses = dict.fromkeys(PAUSES_S, 0)
        """Cumulative counts by upper bound."""
        self._pause_count, self._pause_sum = 0, 0.0
        self.registry.register(self)

    def failure(self, one: Failure) -> None:
        """Count a failure whose record was stored."""
        self._figures.recoveries[one.failure_class, one.outcome] += 1
        self._figures.lost_steps += one.steps_lost
        if one.outcome == "recovered" and one.pause_s is not None:
            self._pause_count += 1
            self._pause_sum += one.pause_s
            for bound in PAUSES_S:
                self._pauses[bound] += one.pause_s <= bound

    def collect(self) -> Iterator[Metric]:
        """As of now."""
        figures = self._figures
        yield InfoMetricFamily(
            PREFIX, "This fabric-compute.", {"name": figures.name, "version": figures.version}
        )
        yield _gauge(
            "connected", "1: connected, all retained messages are here.", figures.connected
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_broker_client_ids_bound",
            "1: at the broker nobody can claim another client's connection.",
            figures.ids_bound,
        )
        yield _gauge(
            "store_reserve", "0: the disk is full, what is left is for decisions.", figures.reserve
        )
        yield _gauge("stopped", "1: stopped by stop file or message.", figures.stopped)
        yield _states("mode", "The promoted mode.", "mode", figures.mode, MODES)
        yield _gauge(
            "last_cycle_timestamp_seconds", "End of the newest decision.", figures.cycle_wall_s
        )
        yield SummaryMetricFamily(
            f"{PREFIX}_decision_seconds", "Time that decisions took.",
            count_value=figures.decisions, sum_value=figures.decision_s,
        )  # fmt: skip
        yield from self._hosts_and_jobs()
        yield from self._totals()

    def _hosts_and_jobs(self) -> Iterator[Metric]:
        hosts = Counter(dict.fromkeys(("online", "offline", "lost"), 0))
        for status in self._intake.statuses.values():
            hosts["online" if status.online else "offline" if status.intended else "lost"] += 1
        yield _labelled(
            GaugeMetricFamily, "hosts", "Hosts by what the broker says.", "state", hosts
        )
        phases = Counter(dict.fromkeys(PHASES, 0))
        phases.update(view.state.phase for view in self._board.jobs.values())
        yield _labelled(GaugeMetricFamily, "jobs", "Jobs by phase.", "phase", phases)
        jobs = self._board.jobs
        for name, (text, value) in _JOB_GAUGES.items():
            values = {job: float(value(view)) for job, view in jobs.items()}
            yield _labelled(GaugeMetricFamily, name, text, "training_job", values)
        slow = GaugeMetricFamily(
            f"{PREFIX}_slow_rank_ratio",
            "Own time of a rank that is slow, over the median of its job's ranks.",
            labels=["training_job", "rank", "host"],
        )
        for job, view in jobs.items():
            for one in view.state.slow_ranks:
                slow.add_metric([escaped(job), str(one.rank), escaped(one.host)], one.ratio)
        yield slow

    def _totals(self) -> Iterator[Metric]:
        figures = self._figures
        recoveries = CounterMetricFamily(
            f"{PREFIX}_recoveries", "Failures by class and outcome.", labels=["class", "outcome"]
        )
        for failure_class in CLASSES:
            for outcome in OUTCOMES:
                key = (failure_class, outcome)
                recoveries.add_metric(key, figures.recoveries[key])
        yield recoveries
        buckets = [(f"{bound:g}", float(count)) for bound, count in self._pauses.items()]
        yield HistogramMetricFamily(
            f"{PREFIX}_pause_seconds",
            "From the first evidence of a loss to a commit of all ranks, of recoveries.",
            buckets=[*buckets, ("+Inf", float(self._pause_count))],
            sum_value=self._pause_sum,
        )
        for name, text, value in (
            ("lost_steps", "Steps that failures lost.", figures.lost_steps),
            ("fences", "Fences issued.", figures.fences),
            ("orders", "Orders that the broker has acknowledged.", figures.orders),
            ("superseded_messages", "Messages that a newer one of their topic replaced unread.",
             figures.superseded),
            ("store_failures", "Decisions that could not be stored at once.",
             figures.store_failures),
            ("decision_failures", "Decisions over one job that an error of ours has ended.",
             figures.decision_failures),
            ("events_left_out", "Events of hosts over their budgets.", figures.events_left_out),
            ("records_left_out", "Records of jobs over budgets.", figures.records_left_out),
        ):  # fmt: skip
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value)
        yield _labelled(
            CounterMetricFamily, "messages", "Messages that counted.", "kind",
            self._intake.accepted,
        )  # fmt: skip
        yield _labelled(
            CounterMetricFamily, "refused_messages", "Messages that were refused.", "reason",
            self._intake.refused,
        )  # fmt: skip
        yield _labelled(
            CounterMetricFamily, "cleared_documents",
            "Retained documents beyond a host's share that were cleared at the broker.", "host",
            figures.cleared,
        )  # fmt: skip
        yield _labelled(
            CounterMetricFamily, "exec_runs", "Runs of the site's command.", "result",
            figures.commands,
        )  # fmt: skip
        yield _labelled(
            GaugeMetricFamily, "oversize_state_bytes",
            "Size of a state that is not sent, for the broker does not take it.", "kind",
            figures.oversize_bytes,
        )  # fmt: skip
        yield _gauge("ledger_entries", "Entries of the ledger.", figures.ledger_entries)
        yield _gauge(
            "ledger_lost", "1: an entry that was published is not here.", figures.ledger_lost
        )
        yield _gauge(
            "ledger_head_timestamp_seconds", "Time of the newest signed head.", figures.head_wall_s
        )

    # -- HTTP ---------------------------------------------------------------------------------

    def routes(self) -> dict[str, Handler]:
        """Path → handler, for ``telemetry.http_server``."""
        return {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/ledger/head": self._head,
            "/ledger/key": self._key,
        }

    async def _metrics(self, _request: Request) -> Reply:
        return Reply(200, generate_latest(self.registry), CONTENT_TYPE_LATEST)

    async def _healthz(self, _request: Request) -> Reply:
        """200 while the event loop makes cycles."""
        age = time.monotonic() - self._figures.cycle_at
        if age > CYCLE_S:
            return Reply(503, f"no cycle for {age:.1f} s\n".encode())
        return Reply(200, b"ok\n")

    async def _readyz(self, _request: Request) -> Reply:
        if not self._figures.connected:
            return Reply(503, b"no connection to the broker, or it is not complete yet\n")
        return Reply(200, b"ready\n")

    async def _head(self, _request: Request) -> Reply:
        if not self._figures.head:
            return Reply(404, b"the ledger has no signed head yet\n")
        return Reply(200, self._figures.head.encode() + b"\n", "application/json")

    async def _key(self, _request: Request) -> Reply:
        return Reply(200, self._figures.key_pem.encode(), "application/x-pem-file")


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, float(value))


def _states(name: str, text: str, label: str, now: str, states: tuple[str, ...]) -> Metric:
    values = {state: float(state == now) for state in states}
    return _labelled(GaugeMetricFamily, name, text, label, values)


def _labelled(
    family: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    metric = family(f"{PREFIX}_{name}", text, labels=[label])
    for value, number in sorted(values.items()):
        metric.add_metric([escaped(value)], number)
    return metric
