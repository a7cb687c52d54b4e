"""Answers about jobs and hosts: with no broker a clear text, with one what is known."""

from types import SimpleNamespace

import pytest
from whole_host import WholeHost

from fabricd.config.source import ConfigSource
from fabricd.control import job_requests
from fabricd.control.access import Caller
from fabricd.control.requests import Requests
from fabricd.control.server import RequestError
from fabricd.escalate.job_views import JobViews
from fabricd.views.services import Services
from telemetry.messages.documents import ComputeJob, ComputeView, Fence, HostEvidence

SAID = HostEvidence(host="h2", lost=True, rule="lost: …", reason="silent", fence="gpt/h2/i")
FENCE = Fence(id="gpt/h2/i", job="gpt", host="h2", incarnation="i", reason="silent")
ROWS = [
    {"kind": "peer", "wall_ns": 1, "reason": "h2 is silent", "data": {"host": "h2"}},
    {"kind": "peer", "wall_ns": 2, "reason": "h1 is silent", "data": {"host": "h1"}},
    {"kind": "migration", "wall_ns": 3, "data": {"origins": "h2,h1", "targets": "h4,h1"}},
    {"kind": "fence", "wall_ns": 4, "data": {"peer_host": "h2"}},
    {"kind": "migration", "wall_ns": 5},
]


@pytest.fixture
async def host(tmp_path):
    whole = WholeHost(tmp_path)
    yield whole.host
    whole.close()


@pytest.fixture
def joined(host):
    """A host whose connection to the control fabric knows one job."""
    views = JobViews()
    job = ComputeJob(
        job="gpt", phase="running", generation=2, proposal="p", ranks={"0": "h1 a", "1": "h4 b"},
        hosts=["h1", "h2", "h4"], evidence=[SAID],
    )  # fmt: skip
    views.update("c0", ComputeView(jobs=[job]), 0)
    escalation = SimpleNamespace(
        client=SimpleNamespace(connected=True), reason="", watch=SimpleNamespace(views=views),
        document=lambda: {"jobs": {"gpt": "connected", "new": "away"}},
        jobs=SimpleNamespace(
            registry=SimpleNamespace(runs={"gpt": None, "new": None}),
            fences=SimpleNamespace(all=lambda: [FENCE], acknowledged=lambda: [FENCE.id]),
        ),
    )  # fmt: skip
    return host, escalation


async def test_without_a_broker_each_says_so(host, tmp_path):
    source = ConfigSource(tmp_path / "f.toml", host.config)
    handlers = Requests(host, Services(), source, tmp_path / "none.db", lambda _: []).handlers()
    for op, asked in (("migrations", {}), ("explain_host", {"host": "h1"})):
        with pytest.raises(RequestError, match=r"no \[broker\] in fabricd.toml"):
            await handlers[op](asked, Caller(1, 0))


async def test_a_name_of_several_users_is_one_users_by_its_uid():
    of = [{"job": "gpt", "uid": uid} for uid in (1001, 1002, 1002)]
    found = {"processes": [*of, {"job": "one", "uid": 7}]}
    job_requests.check_job("one", found, None)
    job_requests.check_job("gpt", found, 1002)
    with pytest.raises(RequestError, match="give --uid, one of 1001, 1002"):
        job_requests.check_job("gpt", found, None)
    with pytest.raises(RequestError, match='no job "gpt" of uid 7'):
        job_requests.check_job("gpt", found, 7)


NONE = {"processes": [], "left_out": 0, "scan": {"partial": ""}}


async def test_jobs_of_both_sides(joined):
    gpt, new = job_requests.jobs(*joined, NONE)["jobs"]
    assert (gpt["job"], gpt["here"], gpt["fenced"]) == ("gpt", "connected", ["h2"])
    assert (new["job"], new["here"], new["phase"]) == ("new", "away", "unknown")


async def test_a_host_is_explained_by_all_that_is_known(joined):
    found = job_requests.explain_host(*joined, "h2", ROWS)
    assert [row["wall_ns"] for row in found["history"]] == [1, 3, 4]
    assert found["jobs"][0]["evidence"]["fence"] == FENCE.id
    assert found["fences"] == [
        {"id": FENCE.id, "job": "gpt", "incarnation": "i", "reason": "silent", "applied": True}
    ]
    healthy = job_requests.explain_host(*joined, "h4", ROWS)["jobs"]
    assert [(job["job"], job["ranks"], job["evidence"]) for job in healthy] == [("gpt", [1], None)]


async def test_an_unknown_host_is_refused_with_those_that_are_known(joined):
    with pytest.raises(RequestError, match=r"known: .*h1, h2"):
        job_requests.explain_host(*joined, "h77", ROWS)
    assert job_requests.explain_host(*joined, "h9", [{"kind": "peer", "wall_ns": 1,
                                                     "data": {"host": "h9"}}])  # fmt: skip


async def test_migrations_are_newest_first_and_limited(joined):
    rows = [row for row in ROWS if row["kind"] == "migration"]
    found = job_requests.migrations(*joined, rows, 1)["migrations"]
    assert [one["wall_ns"] for one in found] == [5]
    assert job_requests.migrations(*joined, rows, 9)["migrations"][1]["from"] == ["h2", "h1"]


def process(job, uid, errors=0, **rails):
    sums = dict.fromkeys(job_requests.SUMS, 0) | {"dead_paths": 0}
    return {"job": job, "uid": uid, "errors": errors, "following": True,
            "rails": [sums | {"netdev": netdev} | values for netdev, values in rails.items()],
            }  # fmt: skip


async def test_jobs_that_use_the_plugin_are_told_without_a_broker(host):
    live = NONE | {
        "processes": [
            process("gpt", 7, rail0={"tx_bytes": 5}, rail1={"tx_bytes": 3, "dead_paths": 2}),
            process("gpt", 7, errors=1, rail0={"tx_bytes": 4, "stall_ns": 9}),
            process("gpt", 8, rail0={"rx_bytes": 1}),
        ],
        "left_out": 3,
        "scan": {"partial": "2 pages were being written"},
    }
    found = job_requests.jobs(host, None, live)
    assert (found["broker"], found["jobs"], found["left_out"]) == (False, [], 3)
    assert found["incomplete"] == "2 pages were being written"
    first, second = found["plugin_jobs"]
    assert (first["uid"], first["processes"], first["errors"]) == (7, 2, 1)
    assert (first["tx_bytes"], first["stall_ns"]) == (12, 9)
    assert (first["rails"], first["dead_rails"]) == (["rail0", "rail1"], ["rail1"])
    assert (second["uid"], second["rx_bytes"]) == (8, 1)
