"""``fabricctl check``: one line, four exit codes, in bounded time whatever the daemon does."""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from control_sockets import served
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner
from whole_host import WholeHost

from fabricd.cli import app, show
from fabricd.views import host_check, report
from fabricd.views.host_check import Level, judge, unknown
from telemetry.events import LinkState

OUT = [state.name.lower() for state in LinkState if state.name.lower() not in host_check.CARRIES]


def link(number, state="up", **changes):
    return {"netdev": f"rail{number}", "state": state, "since_s": 12.4, "reason": "",
            "drained": False, "maintenance": False} | changes  # fmt: skip


def status(**changes):
    return {
        "mode": "steer", "prober": {"up": True}, "stop_file": False, "config": {"problems": []},
        "metrics": {"listen": "127.0.0.1:19200", "bound": True, "text": "on 127.0.0.1:19200"},
    } | changes  # fmt: skip


HEALTHY = [link(number) for number in range(8)]


def test_all_is_well():
    verdict = judge(status(), HEALTHY)
    assert (verdict.level, verdict.findings) == (Level.OK, ())
    assert verdict.line() == (
        "FABRIC OK: 8 of 8 links carry, mode steer | carry=8;;;0;8 wanted=8;;;0;8"
    )


@pytest.mark.parametrize("state", sorted(host_check.CARRIES))
def test_states_that_carry_are_well(state):
    assert judge(status(), [*HEALTHY[1:], link(0, state)]).level is Level.OK


@pytest.mark.parametrize("state", sorted(set(OUT) - {"admin"}))
def test_one_link_of_eight_is_a_warning_that_names_it(state):
    verdict = judge(status(), [*HEALTHY[1:], link(0, state, reason="carrier lost")])
    assert verdict.level is Level.WARNING
    assert verdict.line().startswith(
        f"FABRIC WARNING: rail0 {state} for 12 s (carrier lost); 7 of 8 links carry, mode steer |"
    )


def test_half_of_the_links_or_more_is_critical_and_said_first():
    links = [link(number, "down" if number < 4 else "up") for number in range(8)]
    verdict = judge(status(), links)
    assert verdict.level is Level.CRITICAL
    assert verdict.line().startswith("FABRIC CRITICAL: 4 of 8 links do not carry as they should; ")
    assert judge(status(), links[1:]).level is Level.WARNING, "three of seven"
    assert judge(status(), [link(0, "down")]).level is Level.CRITICAL


@pytest.mark.parametrize("planned", [{"state": "admin", "drained": True}, {"maintenance": True}])
def test_what_an_operator_took_out_is_no_fault(planned):
    out = link(0, planned.pop("state", "down"), **planned)
    verdict = judge(status(), [*HEALTHY[1:], out])
    assert verdict.level is Level.OK
    assert "7 of 7 links carry, mode steer; 1 taken out by an operator |" in verdict.line()
    assert judge(status(), [out]).level is Level.OK, "all of them"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prober": {"up": False}}, "the prober is down"),
        ({"stop_file": True}, "the stop file is there"),
        ({"config": {"problems": ["f.toml:3: x | y\nz"]}}, "refused: f.toml:3: x / y z; "),
        ({"metrics": {"listen": "a:1", "bound": False, "text": "NOT BOUND to a:1: in use"}},
         "metrics NOT BOUND to a:1: in use"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_daemon_is_a_warning(changes, says):
    verdict = judge(status(**changes), HEALTHY)
    assert verdict.level is Level.WARNING
    assert says in verdict.line()
    off = status(metrics={"listen": "", "bound": False, "text": "off"})
    assert judge(off, HEALTHY).level is Level.OK, "no endpoint is wanted"


def test_a_link_that_probes_do_not_watch_is_a_warning():
    verdict = judge(status(unwatched={"rail2": "never heard for 40 s, carrier only"}), HEALTHY)
    assert verdict.level is Level.WARNING
    assert "rail2 never heard for 40 s, carrier only; 8 of 8 links carry" in verdict.line()


def test_a_link_that_is_taken_out_is_not_missed_by_probes_either():
    """Drained, and its card pulled."""
    said = status(unwatched={"rail0": "not probed for 40 s (no device), carrier only"})
    assert judge(said, [*HEALTHY[1:], link(0, "admin", drained=True)]).level is Level.OK
    assert judge(said, [*HEALTHY[1:], link(0, "down", maintenance=True)]).level is Level.OK


def test_links_that_were_never_up_are_a_warning_at_most():
    never = [link(number, "unknown") for number in range(4, 8)]
    verdict = judge(status(), [*HEALTHY[:4], *never])
    assert verdict.level is Level.WARNING
    assert "rail4 unknown for 12 s" in verdict.line()
    assert judge(status(), never).level is Level.WARNING, "all of them"
    one_down = judge(status(), [*HEALTHY[:3], link(3, "down"), *never])
    assert one_down.level is Level.WARNING, "three of four that are known carry"
    half = judge(status(), [*HEALTHY[:2], link(2, "down"), link(3, "down"), *never])
    assert half.line().startswith("FABRIC CRITICAL: 2 of 4 links do not carry as they should; ")


def test_many_findings_are_one_line():
    links = [link(number, "down") for number in range(32)]
    line = judge(status(), links).line()
    assert "; 28 more; 0 of 32 links carry" in line
    assert len(line) < 400


@pytest.mark.patient
@given(st.text(), st.sampled_from([state.name.lower() for state in LinkState]))
def test_no_text_makes_a_second_line_or_a_second_bar(text, state):
    for line in (judge(status(), [link(0, state, reason=text)]).line(), unknown(text).line()):
        assert len(line.splitlines()) == 1
        assert line.count("|") <= 1


def run(path, *arguments):
    return CliRunner().invoke(app, ["check", "--socket", str(path), *arguments])


def handlers(status_, links_):
    async def status_of(_request, _caller):
        return status_

    async def links_of(_request, _caller):
        return links_

    return {"status": status_of, "links": links_of}


@pytest.mark.parametrize(("out", "code", "softly"), [(0, 0, 0), (1, 1, 0), (4, 2, 2)])
def test_exit_codes(tmp_path, out, code, softly):
    links = [link(number, "down" if number < out else "up") for number in range(8)]
    with served(tmp_path / "ctl.sock", handlers(status(), links)) as path:
        assert run(path).exit_code == code
        assert run(path, "--fail-on", "critical").exit_code == softly
        asked = run(path, "--json")
    document = json.loads(asked.output)
    assert (asked.exit_code, document["code"], document["carry"]) == (code, code, 8 - out)
    assert [f["link"] for f in document["findings"] if f["link"]] == [
        f"rail{number}" for number in range(out)
    ]


@pytest.mark.parametrize(
    "wrong",
    [["--timeot", "3s"], ["--timeout"], ["--timeout", "3x"], ["--fail-on", "nothing"], ["rail0"],
     ["--json=1"]],
)  # fmt: skip
def test_wrong_usage_is_unknown_and_drains_nobody(tmp_path, wrong):
    """Click's own status for it is 2, which means CRITICAL here."""
    with served(tmp_path / "ctl.sock", handlers(status(), HEALTHY)) as path:
        done = run(path, *wrong)
    assert done.exit_code == 3
    assert done.stdout.startswith("FABRIC UNKNOWN: wrong usage: ")
    assert len(done.stdout.splitlines()) == 1
    assert "Error" in done.stderr


DOC = (Path(__file__).resolve().parents[4] / "docs/operate/health-checks.md").read_text()
SCRIPTS = re.findall(r"^```sh (\w+)\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)
CRITICAL = judge(status(), [link(0, "down")]).line()
WARNING = judge(status(), [*HEALTHY[1:], link(0, "down")]).line()


@pytest.mark.parametrize(
    ("line", "code", "drains"),
    [
        (judge(status(), HEALTHY).line(), 0, False), (WARNING, 1, False), (CRITICAL, 2, True),
        (unknown("no answer").line(), 3, False),
        ("", 1, False), ("", 2, False), ("", 127, False), ("Usage: fabricctl check", 2, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("name", "script"), SCRIPTS, ids=[name for name, _ in SCRIPTS])
def test_the_documented_scripts_act_on_critical_alone(tmp_path, name, script, line, code, drains):
    asked, drained = tmp_path / "fabricctl", tmp_path / "drained"
    asked.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(line)}\nexit {code}\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >{drained}\n')
    (tmp_path / "hostname").write_text("#!/bin/sh\necho node17\n")
    for program in ("fabricctl", "scontrol", "hostname"):
        (tmp_path / program).chmod(0o755)
    assert "/usr/local/bin/fabricctl" in script
    done = subprocess.run(
        ["sh", "-c", script.replace("/usr/local/bin/fabricctl", str(asked))],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    if name == "slurm":
        assert done.returncode == 0
        assert drained.exists() == drains
        if drains:
            assert drained.read_text() == (
                f"update nodename=node17 state=drain reason={line.partition(' |')[0]}\n"
            )
    elif name == "nhc":
        assert done.returncode == int(drains)
    else:
        assert done.returncode == (1 if drains else 0 if line[:9] in {"FABRIC OK", "FABRIC WA"}
                                   else 2)  # fmt: skip


def test_each_scheduler_has_its_script():
    assert [name for name, _ in SCRIPTS] == ["slurm", "nhc", "npd"]


async def test_a_real_host_is_judged(tmp_path):
    """What the daemon really answers has all that is looked at."""
    whole = WholeHost(tmp_path)
    try:
        whole.link("rail1").carrier = False
        whole.host.evaluator.step()
        state = report.status(whole.host) | {"config": {"problems": []}}
        verdict = judge(json.loads(json.dumps(state)), report.links(whole.host))
        assert "rail1 down for 0 s (carrier lost)" in verdict.line()
        assert "the prober is down" in verdict.line()
        assert verdict.links == 3
        (brief,) = [x for x in state["not_carrying"] if x["netdev"] == "rail1"]
        assert (brief["state"], brief["reason"]) == ("down", "carrier lost")
    finally:
        whole.close()


BROKER = {
    "where": "b port 8883", "connected": False, "reason": "refused", "connections": 2,
    "outbox": 3, "outbox_unstored": 2, "outbox_dropped": 4, "rejected": 5, "refused": {"line": 6},
    "computes": ["c0"], "stopped": "upgrade", "jobs": {"gpt": "connected"},
    "fences": {"f": "gpt on h1"}, "fences_applied": [],
    "limits": ["The broker takes packets of 8192 B at most."],
    "not_sent": {"fabric/v1/host/h0/job/gpt": "30275 B, and the broker takes 8192 B"},
}  # fmt: skip


async def test_status_tells_of_the_broker(tmp_path, capsys):
    whole = WholeHost(tmp_path)
    try:
        data = report.status(whole.host) | {"config": {"problems": [], "hash": "00"}}
    finally:
        whole.close()
    assert data["broker"] is None
    show.status(Console(width=400), data)
    assert "none configured" in capsys.readouterr().out
    show.status(Console(width=400), data | {"broker": BROKER})
    wanted = (
        "b port 8883: NOT CONNECTED; refused; STOPPED BY AN OPERATOR: upgrade; 3 events wait, 4 "
        "dropped; 2 events are not on disk yet; NOT SENT: fabric/v1/host/h0/job/gpt has 30275 B, "
        "and the broker takes 8192 B; The broker takes packets of 8192 B at most; jobs gpt "
        "(connected); 0 of 1 fences applied; "
        "refused line 6, rejected by the broker 5"
    )
    assert wanted in capsys.readouterr().out


async def test_status_names_a_link_that_is_down(tmp_path, capsys):
    whole = WholeHost(tmp_path)
    try:
        whole.link("rail1").carrier = False
        whole.host.evaluator.step()
        document = {"problems": [], "hash": "00"}
        show.status(Console(width=160), report.status(whole.host) | {"config": document})
    finally:
        whole.close()
    assert "rail1 down for 0.0 s: carrier lost" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["absent", "file", "refused", "silent", "garbage", "drips"])
def test_a_daemon_that_does_not_answer_is_unknown_in_bounded_time(tmp_path, what):
    path = tmp_path / "ctl.sock"
    script = {
        "refused": "s.close()",
        "silent": "s.listen(); time.sleep(600)",
        "garbage": "s.listen(); c, _ = s.accept(); c.send(b'{}x\\n'); time.sleep(600)",
        "drips": "s.listen(); c, _ = s.accept()\nwhile True:\n c.send(b'x'); time.sleep(0.02)",
    }.get(what)
    if what == "file":
        path.write_text("")
    process = None
    if script:
        head = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r})\n"
        process = subprocess.Popen([sys.executable, "-c", head + script], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not path.exists() or (what != "refused" and not listens(path)):
            assert time.monotonic() < end
            time.sleep(0.01)
    try:
        began = time.monotonic()
        done = run(path, "--timeout", "1s")
        assert time.monotonic() - began < 30, "1 s, on however slow a machine"
    finally:
        if process:
            process.kill()
            process.wait()
    assert done.exit_code == 3, done.output
    assert done.output.startswith("FABRIC UNKNOWN: ")
    assert len(done.output.splitlines()) == 1


def listens(path):
    text = f" {path}"
    table = Path("/proc/net/unix").read_text().splitlines()
    return any(line.rstrip().endswith(text) and " 00010000 " in line for line in table)
