"""``fabricctl top``: rates between two looks, and how they are shown."""

import contextlib
import io
import json
import time

import pytest
from control_sockets import served
from group_page_bytes import latency, make
from rich.console import Console
from stats_page_files import NOW, SECOND, lay
from typer.testing import CliRunner

import fabricd.cli
from fabricd.cli import client, job_commands, top
from telemetry.livejobs import live_jobs
from telemetry.statsdir import StatsDirectory
from telemetry.statslayout import LATENCY_BUCKETS

GB = 10**9


def counters(**values):
    buckets = [0] * LATENCY_BUCKETS
    for bucket, number in values.pop("latency", {}).items():
        buckets[bucket] = number
    names = ("tx_bytes", "rx_bytes", "retransmit_bytes", "tx_messages", "stall_ns", "failovers",
             "in_flight_bytes", "live_paths", "dead_paths")  # fmt: skip
    return dict.fromkeys(names, 0) | values | {"latency": {"sum_ns": 0, "buckets": buckets}}


def look(time_s, *processes):
    return {"time_ns": int(time_s * 1e9), "processes": list(processes), "left_out": 0}


def process(job="train", pid=1, rails=(), groups=()):
    return {"job": job, "pid": pid, "uid": 0, "subdirectory": "", "start_ns": 5, "following": True,
            "errors": 0, "rails": list(rails), "groups": list(groups)}  # fmt: skip


def rail(netdev="rail0", **values):
    return {"netdev": netdev, **counters(**values)}


def test_a_name_that_two_users_have_is_two_jobs():
    before = look(10, *(process(pid=uid, rails=[rail()]) | {"uid": uid} for uid in (1001, 1002)))
    after = look(
        11,
        process(pid=1001, rails=[rail(tx_bytes=GB)]) | {"uid": 1001},
        process(pid=1002, rails=[rail(tx_bytes=7 * GB, dead_paths=3)]) | {"uid": 1002},
        process(job="other", pid=9, rails=[rail()]),
    )
    after["slow_claims"] = {"rail0": {"uid": 1002, "job": "train", "text": "takes 3 ms"}}
    found = {(row.job, row.uid): row for row in top.rows(before, after)}
    assert found["train", 1001].tx_bytes_s == GB
    assert found["train", 1001].dead_paths == 0
    assert (found["train", 1001].slow, found["train", 1002].slow) == ("", "takes 3 ms")
    file = io.StringIO()
    Console(file=file, width=200).print(top.table(list(found.values()), groups=False))
    jobs = [line.split("  ")[0].strip() for line in file.getvalue().splitlines()[1:]]
    assert sorted(jobs) == ["other", "train (uid 1001)", "train (uid 1002)"]


def test_rates_are_the_difference_over_the_time_summed_over_a_jobs_processes():
    before = look(
        10,
        process(pid=1, rails=[rail(tx_bytes=GB, tx_messages=10, latency={3: 10})]),
        process(pid=2, rails=[rail(tx_bytes=5)]),
    )
    after = look(
        12,
        process(pid=1, rails=[rail(tx_bytes=3 * GB, tx_messages=30, latency={3: 28, 9: 2},
                                   failovers=1, live_paths=2, dead_paths=1)]),
        process(pid=2, rails=[rail(tx_bytes=5 + GB, stall_ns=10**9, in_flight_bytes=7)]),
    )  # fmt: skip
    (row,) = top.rows(before, after)
    assert (row.job, row.where, row.processes, row.following) == ("train", "rail0", 2, 2)
    assert row.tx_bytes_s == 1.5 * GB
    assert row.messages_s == 10
    assert row.stall_share == 0.5
    assert (row.failovers, row.live_paths, row.dead_paths, row.in_flight_bytes) == (1, 2, 1, 7)
    assert row.quantile_us(0.5) == 8
    assert row.quantile_us(0.99) == 512
    assert "latency" not in row.as_json()


def test_a_process_that_is_new_or_began_anew_shows_no_rates():
    newcomer = process(pid=3, rails=[rail(tx_bytes=GB, live_paths=4)])
    (row,) = top.rows(look(1), look(2, newcomer))
    assert (row.tx_bytes_s, row.live_paths, row.quantile_us(0.5)) == (0, 4, None)
    older = process(pid=3, rails=[rail(tx_bytes=2 * GB)])
    (row,) = top.rows(look(1, older), look(2, newcomer))
    assert row.tx_bytes_s == 0  # a counter that went back is no traffic


def test_groups_are_by_peer_and_direction():
    def group(direction, address="10.0.0.2", **values):
        return {"address": address, "incarnation": 7, "direction": direction, "comms": 2,
                "bytes": 0, "messages": 0, **counters(**values)}  # fmt: skip

    kinds = [("send", "10.0.0.2"), ("receive", "10.0.0.2"), ("both", "")]
    before = look(1, process(groups=[group(kind, address) for kind, address in kinds]))
    after = look(
        2, process(groups=[group(kind, address) | {"bytes": 100} for kind, address in kinds])
    )
    rows = {row.where: row for row in top.rows(before, after, groups=True)}
    assert set(rows) == {"to 10.0.0.2", "from 10.0.0.2", "others"}
    assert (rows["to 10.0.0.2"].tx_bytes_s, rows["to 10.0.0.2"].rx_bytes_s) == (100, 0)
    assert (rows["from 10.0.0.2"].tx_bytes_s, rows["from 10.0.0.2"].rx_bytes_s) == (0, 100)
    assert rows["to 10.0.0.2"].comms == 2


def test_only_the_jobs_asked_for():
    both = look(1, process(job="train-1", rails=[rail()]), process(job="eval", rails=[rail()]))
    assert [row.job for row in top.rows(both, both, job="train")] == ["train-1"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1500, "1.50 kB"), (2e6, "2.00 MB"), (12.5e9, "12.50 GB")]
)
def test_sizes(number, text):
    assert top.size(number) == text


@pytest.mark.parametrize(
    ("us", "text"), [(None, "-"), (64, "64 µs"), (2048, "2.0 ms"), (2**22, "4.2 s")]
)
def test_durations(us, text):
    assert top.duration(us) == text


def test_a_job_whose_name_is_markup_is_shown_as_it_is():
    text = io.StringIO()
    job = process(job="[red]x[/red]", rails=[rail()])
    rows = top.rows(look(1, job), look(2, job))
    Console(file=text, width=200).print(top.table(rows, groups=False))
    assert "[red]x[/red]" in text.getvalue()


def test_a_slow_rail_is_marked():
    job = process(rails=[rail("rail0"), rail("rail1")])
    rows = top.rows(look(1, job), look(2, job) | {"slow": {"rail1": "takes long"}})
    assert [row.slow for row in rows] == ["", "takes long"]
    text = io.StringIO()
    Console(file=text, width=200).print(top.table(rows, groups=False))
    assert text.getvalue().count("SLOW") == 1
    assert "rail1 SLOW" in text.getvalue()


@contextlib.contextmanager
def daemon(tmp_path):
    """A control socket that answers from real pages."""
    stats = StatsDirectory(tmp_path / "stats", groups=True)

    async def jobs(_request, _caller):
        return live_jobs(stats)

    with served(tmp_path / "ctl.sock", {"jobs": jobs}) as path:
        yield path


def page_of_now(tmp_path):
    now = time.monotonic_ns()
    header = {"pid": 99, "start_ns": now - SECOND, "heartbeat_ns": now, "job": b"train"}
    groups = [{"address": b"\0" * 10 + b"\xff\xff\x0a\0\0\x07", "incarnation": 3, "direction": 1}]
    page = make(groups=groups, rail_latency=latency(10, b2=1), **header)
    lay(tmp_path / "stats", page, 99, now - SECOND)


def test_once_through_a_real_socket_and_a_real_page(tmp_path):
    page_of_now(tmp_path)
    with daemon(tmp_path) as socket:
        run = CliRunner().invoke
        base = ["top", "--socket", str(socket), "--once", "--interval", "0.1"]
        shown = run(fabricd.cli.app, base)
        assert shown.exit_code == 0, shown.output
        asked = run(fabricd.cli.app, [*base, "--json"])
        (row,) = json.loads(asked.output)["rows"]
        assert (row["job"], row["where"], row["processes"]) == ("train", "rail0", 1)
        asked = run(fabricd.cli.app, [*base, "--json", "--groups"])
        (row,) = json.loads(asked.output)["rows"]
        assert row["where"] == "to 10.0.0.7"
        found, _ = next(job_commands.watch(socket, 0.1, groups=False, job="", once=True))
        text = io.StringIO()
        plain = Console(file=text, width=160)
        job_commands.show(plain, iter([(found, {"left_out": 0})]), groups=False, as_json=False)
        assert "train" in text.getvalue()
        assert "\x1b" not in text.getvalue()  # no terminal, no control codes


def test_a_terminal_gets_a_table_that_stays_in_place():
    text = io.StringIO()
    terminal = Console(file=text, width=160, force_terminal=True, highlight=False)
    job = process(rails=[rail()])
    rows = top.rows(look(1, job), look(2, job))
    job_commands.show(
        terminal,
        iter([(rows, {"left_out": 0}), (rows, {"left_out": 3})]),
        groups=False,
        as_json=False,
    )
    assert "\x1b[" in text.getvalue()
    assert "3 processes more are not shown" in text.getvalue()


def test_no_job_is_said_so():
    text = io.StringIO()
    looks = iter([([], {"left_out": 0})])
    job_commands.show(Console(file=text), looks, groups=False, as_json=False)
    assert text.getvalue() == "No job uses the plugin on this host.\n"


def test_no_daemon_is_said_so(tmp_path):
    shown = CliRunner().invoke(fabricd.cli.app, ["top", "--once", "--socket", str(tmp_path / "x")])
    assert shown.exit_code == 1
    with pytest.raises(client.DaemonError):
        client.request(tmp_path / "x", {"op": "jobs"})


def test_a_partial_scan_is_said():
    looked = {"left_out": 0, "scan": {"partial": "2 pages were being written"}}
    text = io.StringIO()
    console = Console(file=text, width=160)
    job_commands.show(console, iter([([], looked)]), groups=False, as_json=False)
    assert "not all stats pages were read: 2 pages were being written" in text.getvalue()
    assert "No job" not in text.getvalue()


def test_the_answer_is_bounded_and_ended_processes_are_not_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr("telemetry.livejobs.MAX_PROCESSES", 2)
    for pid in range(3):
        lay(tmp_path / "stats", make(pid=pid, start_ns=NOW - SECOND, heartbeat_ns=NOW), pid)
    lay(tmp_path / "stats", make(pid=9, start_ns=5, heartbeat_ns=5), 9, 5)
    answer = live_jobs(StatsDirectory(tmp_path / "stats", groups=True), NOW)
    assert len(answer["processes"]) == 2
    assert answer["left_out"] == 1
    json.dumps(answer)
