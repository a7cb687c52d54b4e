"""bench/hw: what is refused before a host is touched, and what is made of logs of real formats."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.hw import report
from bench.hw.report import Log, ReportError, Row, Sample

SCRIPT = Path(report.__file__).with_name("accept.sh")
NEEDED = {
    "--hosts": "gpu-01,gpu-02", "--nccl-tests": "/opt/nccl-tests/build",
    "--plugin": "/opt/fabricd/lib/libnccl-net-fabric.so",
    "--port-down": "ssh leaf1 'ifdown swp7'", "--port-up": "ssh leaf1 'ifup swp7'",
}  # fmt: skip


def accept(tmp_path, *more, path=None, **changes):
    options = NEEDED | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    words = [word for item in options.items() if item[1] is not None for word in item]
    env = dict(os.environ) | ({"PATH": str(path)} if path else {})
    return subprocess.run(
        ["/bin/bash", SCRIPT, *words, *more], capture_output=True, text=True, timeout=60,
        check=False, cwd=tmp_path, env=env,
    )  # fmt: skip


REFUSED = (
    ({"hosts": None}, "--hosts H1,H2 is missing"),
    ({"hosts": "a"}, "two names of hosts"),
    ({"hosts": "a,b,c"}, "two names of hosts"),
    ({"hosts": "-oProxyCommand=x,b"}, "two names of hosts"),
    ({"hosts": "a,a"}, "one host twice"),
    ({"nccl_tests": None}, "--nccl-tests DIR is missing"),
    ({"plugin": None}, "--plugin FILE is missing"),
    ({"port_down": None}, "nobody else knows the switch"),
    ({"port_up": None}, "must not stay disabled"),
    ({"launcher": "ssh"}, "mpirun or srun"),
    ({"fault_after": "0"}, "whole seconds"),
    ({"fault_for": "1.5"}, "whole seconds"),
    ({"min_ratio": "95%"}, "a number such as 0.95"),
    ({"nics": "1"}, "2 to 8"),
    ({"gpus": "17"}, "1 to 16"),
    ({"env": "x"}, "NAME=VALUE"),
)


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_wrong_usage_is_refused_by_name(tmp_path, changes, words):
    done = accept(tmp_path, **changes)
    assert done.returncode == 2
    assert words in done.stderr
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_a_dry_run_shows_every_command_and_changes_nothing(tmp_path):
    done = accept(tmp_path, "--dry-run", env="NCCL_IB_TC=106", gpus="4", out="/o")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    stock, fabric, fault = (line for line in lines if line.startswith("mpirun"))
    assert "-x NCCL_NET_PLUGIN=none -x NCCL_NET=IB -x NCCL_IB_TC=106" in stock
    assert "-np 8 -H gpu-01:4\\,gpu-02:4" in stock
    assert "-x NCCL_NET_PLUGIN=/opt/fabricd/lib/libnccl-net-fabric.so -x NCCL_NET=FABRIC" in fabric
    assert "-N CYCLES" in fault
    assert "sleep 30; ssh leaf1 'ifdown swp7'; sleep 30; ssh leaf1 'ifup swp7'" in lines
    assert not list(tmp_path.iterdir())
    srun = accept(tmp_path, "--dry-run", launcher="srun").stdout
    assert "env NCCL_DEBUG=INFO" in srun
    assert "srun -N2 --ntasks-per-node=8 -w gpu-01\\,gpu-02 --export=ALL /opt" in srun


def test_what_is_missing_is_told_all_at_once(tmp_path):
    """A machine with nothing but the shell and two tools of it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("dirname", "date", "mkdir"):
        (tools / name).symlink_to(shutil.which(name))
    done = accept(tmp_path, path=tools)
    assert done.returncode == 2
    assert "missing: ssh here; python3 here; pkill here; mpirun here" in done.stderr


# Logs


HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501


def lines(rows, net="FABRIC", direct=2, channels=2, start=1000.0):
    at = start
    out = [f"{at} gpu-01:71:90 [0] NCCL INFO Using network {net}"]
    for channel in range(channels):
        option = "/GDRDMA" if channel < direct else ""
        out.append(f"{at} gpu-01:71:99 [0] NCCL INFO Channel 0{channel}/0 : 8[0] -> 0[0] [receive] "
                   f"via NET/{net}/{channel}{option}")  # fmt: skip
    out += [f"{at} {line}" for line in HEADER.splitlines()]
    for at, size, time, bus, wrong in rows:
        out.append(f"{at} {size:>12} {size // 4:>13}     float     sum      -1  {time:>8}   10.00  "
                   f"{bus:>6} {wrong:>6}  {time:>8}   10.00  {bus:>6} {wrong:>6}")  # fmt: skip
    return [line + "\n" for line in out] + ["1.0 # Out of bounds values : 0 OK\n", "noise\n"]


SWEEP = [(1001.0, 8, 25.1, 0.0, 0), (1002.0, 64 << 20, 1800.5, 70.0, 0),
         (1003.0, 1 << 30, 21000, 96.0, 0)]  # fmt: skip


def log(rows=SWEEP, status=0, **more):
    return report.parse_log(lines(rows, **more), status)


def by_name(rows):
    return {row.name: row for row in rows}


def test_a_log_of_nccl_tests():
    found = log()
    assert found.samples[1] == Sample(1002.0, 64 << 20, 1800.5, 70.0, 0)
    assert (found.networks, found.channels, found.direct) == ({"FABRIC"}, 2, 2)
    assert report.parse_log(lines([(1.0, 8, 1, 1, "N/A")]), 0).samples[0].wrong is None


def test_cycles_fill_the_time():
    assert report.cycles(log(), 1 << 30, 20, 42.0) == 50
    assert report.cycles(log(), 64 << 20, 20, 0.1) == 10
    with pytest.raises(ReportError, match="no row of 7 bytes"):
        report.cycles(log(), 7, 20, 1)


def test_bandwidth_beside_nccls_own():
    slower = [(1001.0, 8, 25.1, 0.0, 0), (1002.0, 64 << 20, 1800.5, 60.0, 0),
              (1003.0, 1 << 30, 21000, 95.0, 0)]  # fmt: skip
    rows = by_name(report.bandwidth(log(net="IB"), log(slower), 0.95))
    assert rows["bus bandwidth, 8 B"].ok is None, "small messages are shown, not asked"
    assert rows["bus bandwidth, 64 MiB"].ok is False
    assert rows["bus bandwidth, 1 GiB"].ok is True
    assert rows["run over the plugin: network FABRIC"].ok is True


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"net": "Socket"}, "run over the plugin: network FABRIC"),
        ({"status": 3}, "run over the plugin: exit status"),
        ({"rows": [(1.0, 1 << 30, 1, 96.0, 5)]}, "run over the plugin: wrong elements"),
        ({"rows": [(1.0, 1 << 30, 1, 96.0, "N/A")]}, "run over the plugin: wrong elements"),
        ({"rows": []}, "run over the plugin: wrong elements"),
        ({"rows": []}, "bus bandwidth, large messages"),
    ],
)
def test_a_run_that_proves_nothing_does_not_hold(change, name):
    assert by_name(report.bandwidth(log(net="IB"), log(**change), 0.95))[name].ok is False


@pytest.mark.parametrize(("direct", "channels", "ok"), [(2, 2, True), (1, 2, False), (0, 0, False)])
def test_gpudirect_on_every_channel(direct, channels, ok):
    (row,) = report.gpudirect(log(net="IB"), log(direct=direct, channels=channels))
    assert row.ok is ok


def cycle(at, bus=96.0, wrong=0):
    return (at, 256 << 20, 5000, bus, wrong)


DOWN, UP = 2030.0, 2060.0


def story(*, stall=0.3, during=80.0, after=95.0, wrong=0):
    """A cycle each 0.25 s; a stall when the port goes."""
    rows = [cycle(2000 + n / 4) for n in range(120)]
    rows += [cycle(DOWN + stall + n / 4, during, wrong) for n in range(119)]
    return rows + [cycle(UP + 0.25 + n / 4, after) for n in range(120)]


def failover(rows, status=0, seen=2):
    return by_name(report.failover(log(rows, status), DOWN, UP, 8, seen))


def test_a_port_that_is_disabled_costs_a_short_stall_and_its_own_bandwidth():
    rows = failover(story())
    assert {name: row.ok for name, row in rows.items()} == dict.fromkeys(rows, True)
    assert rows["port disabled: longest stall"].got == pytest.approx(0.3, abs=0.01)
    assert rows["port disabled: bus bandwidth on the NICs left"].asked == pytest.approx(75.6)


@pytest.mark.parametrize(
    ("changes", "more", "name"),
    [
        ({"stall": 1.4}, {}, "port disabled: longest stall"),
        ({"during": 60.0}, {}, "port disabled: bus bandwidth on the NICs left"),
        ({"after": 80.0}, {}, "port enabled again: bus bandwidth"),
        ({"wrong": 1}, {}, "port disabled: wrong elements"),
        ({}, {"status": 6}, "port disabled: exit status of the job"),
        ({}, {"seen": 0}, "port disabled: links seen DOWN by fabricd"),
    ],
)
def test_each_bound_is_held(changes, more, name):
    rows = failover(story(**changes), **more)
    assert [key for key, row in rows.items() if row.ok is False] == [name]


def test_a_job_that_ended_at_the_fault_has_no_figures_and_does_not_hold():
    rows = failover(story()[:120], status=1)
    for name in ("port disabled: bus bandwidth on the NICs left",
                 "port enabled again: bus bandwidth"):  # fmt: skip
        assert (rows[name].got, rows[name].ok) == (None, False)


def test_downs_of_a_timeline_in_its_time():
    rows = [{"kind": "link_state", "to": "down", "wall_ns": int(t * 1e9)} for t in (1, 10, 20)]
    rows += [{"kind": "link_state", "to": "hold", "wall_ns": int(10e9)}, 7, {"kind": "flap"}]
    assert report.downs(rows, 5, 15) == 1
    assert report.downs("x", 5, 15) == 0


# The whole report


def answer(ports=8, transports=("tcp", "verbs"), problem=""):
    return "motd\n" + json.dumps(
        {"fabricd_plugin_check": 1, "ports": [{"name": f"mlx5_{n}/1"} for n in range(ports)],
         "plugin": {"transports": list(transports), "problem": problem}},
        separators=(",", ":"),
    )  # fmt: skip


def made(directory):
    for name, rows, net in (("stock", SWEEP, "IB"), ("fabric", SWEEP, "FABRIC"),
                            ("fault", story(), "FABRIC")):  # fmt: skip
        (directory / f"{name}.log").write_text("".join(lines(rows, net=net)))
        (directory / f"{name}.status").write_text("0\n")
    (directory / "port").write_text(f"down {DOWN}\nup {UP}\n")
    for host in ("h1", "h2"):
        (directory / f"check.{host}").write_text(answer())
        (directory / f"doctor.{host}").write_text('{"findings": []}')
        event = {"kind": "link_state", "to": "down", "wall_ns": int((DOWN + 0.02) * 1e9)}
        (directory / f"timeline.{host}").write_text(json.dumps([event]))
    return directory


def judged(directory):
    return subprocess.run(
        ["python3", SCRIPT.with_name("report.py"), "judge", directory], capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_report_is_text_and_json(tmp_path):
    done = judged(made(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["meta"] == {"hosts": ["h1", "h2"], "nics": 8, "min_ratio": 0.95}
    assert {*document["rows"][0]} >= {"name", "asked", "got", "unit", "peer", "ratio", "ok"}
    assert (tmp_path / "report.txt").read_text() == done.stdout
    (tmp_path / "fault.status").write_text("1\n")
    assert judged(tmp_path).returncode == 1


@pytest.mark.parametrize("name", ["stock.log", "fault.status", "port"])
def test_a_run_that_was_not_made_is_no_report(tmp_path, name):
    (made(tmp_path) / name).unlink()
    done = judged(tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "report.json").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"check": answer(ports=1)}, "1 usable verbs ports, not 2 to 8"),
        ({"check": answer(ports=9)}, "9 usable verbs ports"),
        ({"check": answer(transports=("tcp",))}, "the plugin carries no verbs"),
        ({"check": answer(problem="x does not load")}, "x does not load"),
        ({"check": answer(ports=7)}, "different numbers"),
        ({"check": "bash: fabricctl: command not found"}, "no answer"),
        ({"doctor": '{"findings": [{"severity": "critical", "seen": "no GID"}]}'}, "no GID"),
        ({"doctor": "[]"}, "no answer of `fabricctl doctor"),
    ],
)
def test_what_keeps_the_run_from_being_made(tmp_path, change, words):
    made(tmp_path)
    assert report.preflight(tmp_path, ["h1", "h2"], 0) == []
    assert len(report.preflight(tmp_path, ["h1", "h2"], 4)) == 2
    for name, text in change.items():
        (tmp_path / f"{name}.h2").write_text(text)
    assert any(words in problem for problem in report.preflight(tmp_path, ["h1", "h2"], 0))


def test_a_row_without_a_figure_does_not_hold():
    assert Row("x", 1, None, "", "lower").ok is False
    assert Row("x", 1, float("nan"), "", "lower").ok is False
    assert Row("x", None, None, "", "lower").ok is None
    assert Log((), frozenset(), 0, 0, 0).samples == ()
