"""``fabricctl plugin check``: who is asked and how, hostile answers, and what is refused."""

import contextlib
import json
import re
import shlex
import socket
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fabricd.cli
from fabricd.doctor.facts import HostFacts
from fabricd.plugincheck import reach
from fabricd.plugincheck.answer import (
    MAX_LINE,
    Answer,
    AnswerError,
    answers,
    local_answer,
    parse,
)
from fabricd.plugincheck.compare import judge
from fabricd.plugincheck.reach import TemplateError, command_for, host_names, query_hosts
from fabricd.process.bounded_run import run
from fabricd.views.host_check import Level

LIMIT_S = 60.0


def answer(host="h1", **changes):
    plugin = {"path": "/opt/x.so", "release": "0.1.0", "wire_min": 1, "wire_max": 3,
              "tables": [8, 9], "sha256": "ab" * 32, "transports": ["tcp", "verbs"]}  # fmt: skip
    plugin |= changes.pop("plugin", {})
    ports = [{"name": f"mlx5_{n}/1", "link_layer": "Ethernet"} for n in range(4)]
    document = {"fabricd_plugin_check": 1, "host": host, "release": "0.1.0", "plugin": plugin,
                "libibverbs": "libibverbs.so.1", "ports": ports, "rails": ["r0", "r1", "r2", "r3"],
                "variables": {}}  # fmt: skip
    return Answer.model_validate(document | changes)


def job(*changes):
    return {f"h{n}": answer(f"h{n}", **change) for n, change in enumerate(changes)}


def ports(count, problem="", layer="Ethernet"):
    return [{"name": f"d{n}/1", "link_layer": layer, "problem": problem} for n in range(count)]


# What is refused


def test_hosts_that_agree_may_run():
    judgement = judge(job({}, {}, {}))
    assert (judgement.level, judgement.findings) == (Level.OK, ())


REFUSED = (
    ({"plugin": {"problem": "no plugin library; looked for /x"}}, "no plugin library", True),
    ({"plugin": {"wire_min": 4, "wire_max": 5}}, "no wire version in common", True),
    ({"plugin": {"wire_max": 4}}, "different wire versions; all know 3", False),
    ({"plugin": {"wire_min": 3, "wire_max": 5}}, "different wire versions; all know 3", False),
    ({"plugin": {"wire_max": 2}}, "different wire versions; all know 2", False),
    ({"plugin": {"wire_min": 0, "wire_max": 0}}, "does not say which versions", False),
    ({"ports": []}, "differ in what they can do with verbs", False),
    ({"libibverbs": ""}, "differ in what they can do with verbs", False),
    ({"plugin": {"transports": ["tcp"]}}, "differ in what they can do with verbs", False),
    ({"ports": ports(4, "/dev/infiniband/uverbs0: No such file")}, "can do with verbs", False),
    ({"ports": ports(4, layer="InfiniBand")}, "can do with verbs", False),
    ({"memlock": 65536}, "may lock too little memory", False),
)


@pytest.mark.parametrize("allow", [False, True])
def test_a_release_with_challenges_beside_one_without_needs_the_switch(allow):
    """A plugin of wire version 6 lets an older one in only where the operator says so."""
    newer = {"plugin": {"wire_max": 6}}
    judgement = judge(job({}, newer, newer), allow_mixed=allow)
    assert judgement.level is Level.CRITICAL
    assert judgement.findings[0].subject == "h1, h2"
    assert "FABRIC_UNPROVEN=1" in judgement.findings[0].action
    switched = newer | {"variables": {"FABRIC_UNPROVEN": "1"}}
    let_in = judge(
        job({"variables": {"FABRIC_UNPROVEN": "1"}}, switched, switched), allow_mixed=allow
    )
    assert let_in.level is (Level.WARNING if allow else Level.CRITICAL)
    assert "all know 3" in let_in.findings[0].seen
    half = judge(job({}, newer, switched), allow_mixed=allow)
    assert (half.level, half.findings[0].subject) == (Level.CRITICAL, "h1")


@pytest.mark.parametrize(("change", "words", "always"), REFUSED)
def test_a_host_that_does_not_fit_the_others_is_refused(change, words, always):
    """#2428, #234, #1634: some ranks lack the plugin, its version, or verbs."""
    hosts = job({}, {}, change)
    judgement = judge(hosts)
    assert judgement.level is Level.CRITICAL
    assert words in judgement.findings[0].seen
    text = " ".join((judgement.findings[0].subject, *judgement.findings[0].detail))
    assert "h2" in text, "the host is named"
    expected = Level.CRITICAL if always else Level.WARNING
    assert judge(hosts, allow_mixed=True).level is expected


def test_why_a_host_has_no_verbs_is_said():
    (finding,) = judge(job({}, {}, {"ports": ports(4, "uverbs0: No such file")})).findings
    assert finding.detail == (
        "verbs over Ethernet: h0, h1", "TCP alone: h2", "h2: d0/1: uverbs0: No such file",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plugin": {"release": "0.2.0"}}, "different releases"),
        ({"plugin": {"sha256": "cd" * 32}}, "different builds"),
        ({"ports": ports(3) + ports(1, "the port is DOWN")}, "numbers of usable verbs ports"),
        ({"rails": ["r0"]}, "different numbers of rails"),
        ({"variables": {"NCCL_IB_TC": "106"}}, "NCCL_IB_TC differs"),
    ],
)
def test_what_only_makes_it_worse_is_warned_of(change, words):
    judgement = judge(job({}, {}, change))
    assert judgement.level is Level.WARNING
    assert words in judgement.findings[0].seen


def test_a_host_without_an_answer_is_unknown_unless_another_is_refused():
    silent = {"h8": "no answer", "h9": "no answer"}
    judgement = judge(job({}, {}) | silent)
    assert judgement.level is Level.UNKNOWN
    assert judgement.findings[0].subject == "h8, h9"
    assert judge(job({}, {"ports": []}) | silent).level is Level.CRITICAL


def test_many_hosts_are_counted_not_listed():
    (finding,) = judge(job(*[{}] * 40, {"ports": []})).findings
    assert "h7 and 32 more" in finding.detail[0]


# What a host may print


HOSTILE = (
    (b"", "no answer"),
    (b'{"fabricd_plugin_check":1', "makes no sense"),
    (b'{"fabricd_plugin_check":2,"host":"h"}', "fabricd_plugin_check"),
    (b'{"fabricd_plugin_check":1,"host":7}', "makes no sense"),
    (b'{"fabricd_plugin_check":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}", "makes no sense"),
    (b'{"fabricd_plugin_check":1,"host":"\\u001b[2Jh","release":"1","plugin":{}}', "host"),
    (b'{"fabricd_plugin_check":1,"host":"h","release":"1","plugin":{"path":"\\n"}}', "plugin.path"),
    (b'{"fabricd_plugin_check":1,"host":"h","release":"1","plugin":{"wire_max":1e9}}', "wire_max"),
    (b'{"fabricd_plugin_check":1,"host":"' + b"h" * 100 + b'","release":"1","plugin":{}}', "host"),
    (b'{"fabricd_plugin_check":1,"host":"h","release":"1","plugin":{},"ports":['
     + b",".join([b'{"name":"a","link_layer":"b"}'] * 300) + b"]}", "ports"),
    (b'{"fabricd_plugin_check":1,"x":"' + b"y" * MAX_LINE + b'"}', "allowed: 262144"),
    (b'{"fabricd_plugin_check":1,"host":"\xff\xfe"}', "makes no sense"),
)  # fmt: skip


@pytest.mark.parametrize(("printed", "words"), HOSTILE)
def test_hostile_answers_are_refused_and_harm_nobody(tmp_path, printed, words):
    file = tmp_path / "printed"
    file.write_bytes(b"Welcome to h1\n" + printed + b"\n")
    good = tmp_path / "good"
    good.write_text(answer().line() + "\n")
    (tmp_path / "bad").symlink_to(file)
    found = query_hosts(["good", "bad"], f"sh -c 'cat {tmp_path}/{{host}}'", ["ignored"], LIMIT_S)
    assert isinstance(found["good"], Answer)
    assert words in found["bad"]
    assert found["bad"].isprintable()
    assert judge(found).level is Level.UNKNOWN


@given(st.binary(max_size=300))
def test_any_bytes_are_an_answer_or_refused(data):
    for line in (data, b'{"fabricd_plugin_check":1,' + data, *answers(data)):
        with contextlib.suppress(AnswerError):
            assert parse(line).fabricd_plugin_check == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*Answer.model_fields]), JSON))
def test_answers_of_any_types_are_judged_or_refused(changes):
    document = json.loads(answer().line()) | changes
    try:
        read = parse(json.dumps(document).encode())
    except AnswerError:
        return
    text = json.dumps(judge({"h0": answer(), "h1": read}).document())
    assert "\\u001b" not in text


def test_an_answer_is_one_line_and_comes_back_as_it_went():
    line = answer(variables={"NCCL_IB_HCA": "mlx5"}).line()
    assert "\n" not in line
    assert line.startswith('{"fabricd_plugin_check":1')
    assert parse(line.encode()) == answer(variables={"NCCL_IB_HCA": "mlx5"})


def test_a_newer_release_may_say_more():
    assert parse((answer().line()[:-1] + ',"gpus":8}').encode()) == answer()


# How hosts are reached


def test_by_default_ssh_asks_no_password_and_quotes():
    argv = command_for("u@gpu-01", None, ["/opt/a b/fabricctl", "plugin", "check"])
    assert argv[:-1] == [
        "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", "u@gpu-01",
    ]  # fmt: skip
    assert shlex.split(argv[-1]) == ["/opt/a b/fabricctl", "plugin", "check"]


def test_a_template_gets_the_host_where_it_says():
    argv = command_for("h7", "srun -N1 -w {host} --export=ALL", ["fabricctl"])
    assert argv == ["srun", "-N1", "-w", "h7", "--export=ALL", "fabricctl"]


@pytest.mark.parametrize("via", ["", "  ", "sh -c 'x"])
def test_a_template_that_is_none_is_refused(via):
    with pytest.raises(TemplateError, match="--via"):
        command_for("h", via, ["x"])


@pytest.mark.parametrize(
    "hosts", ["-oProxyCommand=x", "h1,-v", "h1;reboot", "h 1", "$(x)", "h1,h1", "", ",", "a/b", "ü"]
)
def test_what_is_no_host_is_not_run(hosts):
    with pytest.raises(TemplateError):
        host_names(hosts)


def test_hosts():
    assert host_names("gpu-01, root@gpu-02.x.y,10.0.0.1,fe80::1%eth0") == (
        "gpu-01", "root@gpu-02.x.y", "10.0.0.1", "fe80::1%eth0",
    )  # fmt: skip


def test_a_command_that_cannot_be_run_or_fails_is_named():
    assert "No such file" in run(["/nonexistent/ssh"], LIMIT_S, 100).problem
    found = query_hosts(["h1"], "sh -c 'echo Permission denied >&2; exit 255'", [], LIMIT_S)
    assert found == {"h1": "no answer (exit status 255: Permission denied)"}


@pytest.mark.patient
def test_a_host_that_hangs_is_ended_with_what_it_started(tmp_path):
    pid = tmp_path / "pid"
    found = query_hosts(["h1"], f"sh -c 'sleep 987 & echo $! > {pid}; wait'", [], 2.0)
    assert found == {"h1": "it did not end within 2 s"}
    gone = Path(f"/proc/{pid.read_text().strip()}/cmdline")
    end = time.monotonic() + LIMIT_S
    while gone.exists() and gone.read_bytes():  # a zombie has none
        assert time.monotonic() < end, "what the host's command started still runs"
        time.sleep(0.02)


def test_a_host_that_prints_without_end_is_ended():
    said = run(["sh", "-c", "yes"], LIMIT_S, 1 << 16)
    assert said.problem == "it printed more than 65536 bytes"
    assert len(said.output) < 1 << 20


def test_what_a_command_leaves_behind_is_not_waited_for():
    """ssh's master (ControlPersist) keeps standard error open."""
    start = time.monotonic()
    said = run(["sh", "-c", "sleep 30 2>&1 & echo out"], LIMIT_S, 1000)
    assert (said.output, said.status, said.problem) == (b"out\n", 0, "")
    assert time.monotonic() - start < 25


def test_one_command_for_all_is_told_apart_by_names(tmp_path):
    file = tmp_path / "all"
    lines = [answer("h1.cluster"), answer("h2"), answer("h2"), answer("stranger")]
    file.write_text("".join(x.line() + "\n" for x in lines) + "srun: error\n")
    found = query_hosts(["h1", "u@h2", "h3"], f"cat {file}", [], LIMIT_S)
    assert isinstance(found["h1"], Answer)
    assert "more than one answer" in found["u@h2"]
    assert "stranger, which was not asked" in found["h3"]


# The command


def invoke(*args):
    return CliRunner().invoke(fabricd.cli.app, ["plugin", "check", *map(str, args)])


def test_this_host_says_one_line(tmp_path):
    shown = invoke("--json", "--library", tmp_path / "none.so")
    assert shown.exit_code == 2
    (line,) = shown.stdout.splitlines()
    assert "no plugin library" in parse(line.encode()).plugin.problem


def test_hosts_are_asked_with_the_options_that_they_need(tmp_path):
    script = tmp_path / "there"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nline = {answer().line()!r}\n"
        "assert sys.argv[2:] == ['plugin', 'check', '--json', '--library', '/l.so'], sys.argv\n"
        "print(line.replace('\"h1\"', '\"' + sys.argv[1] + '\"'))\n"
        "sys.exit(2)\n"
    )
    script.chmod(0o755)
    args = ("--hosts", "h1,h2", "--via", f"{script} {{host}}", "--command", "", "--library",
            "/l.so")  # fmt: skip
    shown = invoke(*args, "--json")
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    assert document["status"] == "ok"
    assert [entry["host"] for entry in document["hosts"].values()] == ["h1", "h2"]
    table = invoke(*args)
    assert re.search(r"^h1 +0\.1\.0 +1 to 3 +4 Ethernet +4", table.stdout, re.MULTILINE)
    assert "OK: these hosts may run a job together" in table.stdout


def test_a_refused_job_says_so(tmp_path):
    for name, change in (("h1", {}), ("h2", {"ports": []})):
        (tmp_path / name).write_text(answer(name, **change).line() + "\n")
    via = f"sh -c 'cat {tmp_path}/{{host}}'"
    shown = invoke("--hosts", "h1,h2", "--via", via)
    assert shown.exit_code == 2
    assert "CRITICAL: refused" in shown.stdout
    assert "TCP alone: h2" in shown.stdout
    assert invoke("--hosts", "h1,h2", "--via", via, "--allow-mixed").exit_code == 1
    assert invoke("--hosts", "h1,h3", "--via", via).exit_code == 3


def test_wrong_usage_is_unknown():
    for args in (["--hosts", "-x"], ["--hosts", "h1", "--via", "'"],
                 ["--hosts", "h1", "--timeout", "soon"], ["--no-such"]):  # fmt: skip
        assert invoke(*args).exit_code == 3, args


def test_at_most_so_many_are_asked_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(reach, "AT_ONCE", 2)
    (tmp_path / "line").write_text(answer().line() + "\n")
    found = query_hosts(
        [f"h{n}" for n in range(9)], f"sh -c 'cat {tmp_path}/line # {{host}}'", [], LIMIT_S
    )
    assert all(isinstance(reply, Answer) for reply in found.values())
    assert len(found) == 9


def test_a_host_is_called_what_the_daemon_calls_it():
    assert local_answer(HostFacts(host="gpu-07")).host == "gpu-07"
    assert local_answer(HostFacts()).host == socket.gethostname()
