"""``fabricctl doctor``: exit status, JSON, text, --only, --strict; without root, daemon or RDMA."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from host_trees import Host
from typer.testing import CliRunner

import fabricd.cli
from fabricd.doctor.checks import CHECKS, Check, run
from fabricd.doctor.facts import HostFacts
from fabricd.doctor.finding import Finding, Report, Severity
from fabricd.doctor.gather.processes import processes
from fabricd.doctor.machine import ThisMachine, ToolError
from fabricd.doctor.report import lines
from fabricd.doctor.tree import Tree

DOCS = Path(__file__).resolve().parents[4] / "docs/reference/doctor.md"


def invoke(*args):
    return CliRunner().invoke(fabricd.cli.app, ["doctor", *map(str, args)])


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path / "root", "mlx5_roce")
    host.config("rail0", "rail1")
    return host


def test_each_check_has_a_section_in_the_documentation():
    text = DOCS.read_text()
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    sections = re.findall(r"^### ([a-z-]+)$", text, re.MULTILINE)
    assert sections == names, "docs/reference/doctor.md has a section of each check, in order"


def test_this_machine_without_root_or_daemon(tmp_path):
    """Whatever machine this is: it ends, its JSON is whole, and it says what it did not see."""
    shown = invoke("--json", "--config", tmp_path / "none.toml")
    assert shown.exit_code in {0, 1, 2}, shown.output
    document = json.loads(shown.stdout)
    assert document["code"] == shown.exit_code
    assert document["checks"] == [check.name for check in CHECKS]
    assert "the daemon's configuration" in document["unexamined"]
    assert not [what for what in document["unexamined"] if what.startswith("check ")]
    for finding in document["findings"]:
        assert finding["severity"] in {"note", "warning", "critical"}
        assert finding["seen"]
        assert finding["action"]
        assert finding["docs"] == f"docs/reference/doctor.md#{finding['check']}"


def test_another_root_is_read_and_nothing_asked_of_this_machine(host):
    host.port("mlx5_1", 1, "Ethernet", "1:DOWN", "400", "Gb/sec")
    shown = invoke("--root", host.root, "--only", "port-state", "--library", host.library)
    assert shown.exit_code == 2, shown.output
    assert "critical  mlx5_1/1: mlx5_1/1 is DOWN, not ACTIVE." in shown.stdout
    assert "  see     docs/reference/doctor.md#port-state" in shown.stdout
    assert "ip speaks of this machine, not of another root" in shown.stdout


@pytest.mark.parametrize(
    ("severities", "unexamined", "strict", "code"),
    [
        ((), {}, False, 0), ((), {"x": "y"}, False, 0), ((), {"x": "y"}, True, 3),
        ((Severity.NOTE,), {}, True, 0), ((Severity.WARNING,), {"x": "y"}, True, 1),
        ((Severity.NOTE, Severity.CRITICAL, Severity.WARNING), {"x": "y"}, True, 2),
    ],
)  # fmt: skip
def test_the_exit_status_is_that_of_the_worst_finding(severities, unexamined, strict, code):
    findings = tuple(Finding(severity, "x", "seen", "do") for severity in severities)
    assert Report(findings, (), unexamined).level(strict=strict) == code


def test_only_what_was_asked_for_runs(host):
    host.no_gids("mlx5_0")
    host.port("mlx5_1", 1, "Ethernet", "1:DOWN", "400", "Gb/sec")
    report = run(host.facts(), ("gid-table",))
    assert {finding.check for finding in report.findings} == {"gid-table"}
    assert report.checks == ("gid-table",)


def test_every_table_is_shown_on_demand(host):
    args = ("--root", host.root, "--only", "gid-table", "--library", host.library)
    shown = invoke(*args, "--verbose").stdout
    assert "mlx5_0/1: Ethernet ACTIVE 400 Gb/sec (4X NDR), rail0\n" in shown
    assert "      3  0000:0000:0000:0000:0000:ffff:0a01:0001  RoCE v2     rail1\n" in shown
    facts = json.loads(invoke(*args, "--json").stdout)["facts"]
    assert [port["name"] for port in facts["ports"]] == ["mlx5_0/1", "mlx5_1/1"]
    assert facts["ports"][0]["gids"][3]["value"] == "0000:0000:0000:0000:0000:ffff:0a00:0001"
    assert facts["ports"][0]["driver"] == "mlx5_core"
    assert facts["plugin"]["release"] == "0.1.0"


def test_wrong_usage_says_nothing_of_the_host():
    shown = invoke("--only", "gids")
    assert shown.exit_code == 3
    assert "allowed: verbs-devices, port-state" in re.sub(r"[\s│]+", " ", shown.output)
    assert invoke("--no-such-option").exit_code == 3


def test_the_checks_are_listed():
    shown = invoke("--list")
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()] == [c.name for c in CHECKS]


def test_a_check_that_fails_hides_no_other(monkeypatch):
    def broken(_facts):
        yield Finding(Severity.WARNING, "x", "seen", "do")
        raise KeyError("fault of ours")

    rows = (Check("broken", "", broken), *CHECKS)
    monkeypatch.setattr("fabricd.doctor.checks.CHECKS", rows)
    report = run(HostFacts())
    assert report.unexamined == {"check broken": "it failed: KeyError('fault of ours')"}
    assert [finding.check for finding in report.findings][-1] == "verbs-devices"


def test_names_of_foreign_origin_cannot_write_to_the_terminal():
    bad = Finding(
        Severity.WARNING, "eth\x1b[2J", "seen\nwarning   forged", "do", ("a\x07b",), "mtu"
    )
    text = "\n".join(lines(Report((bad,), ("mtu",), {"x\x1b": "y\r"}), verbose=True))
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert len([line for line in text.splitlines() if line.startswith("warning")]) == 1


def test_a_tool_is_bounded_and_its_failure_named(monkeypatch):
    machine = ThisMachine()
    assert machine.run(["sh", "-c", "echo out; echo err >&2"]) == "out\n"
    with pytest.raises(ToolError, match="no-such-tool is not installed"):
        machine.run(["no-such-tool"])
    with pytest.raises(ToolError, match="sh ended with 3: why"):
        machine.run(["sh", "-c", "echo why >&2; exit 3"])
    monkeypatch.setattr("fabricd.doctor.machine.TOOL_S", 0.0)
    with pytest.raises(ToolError, match="did not end within 0 s"):
        machine.run(["sleep", "100"])


def test_processes_are_looked_at_in_a_child():
    """It finds the variables of a real process, and says which it may not look at."""
    variables = {"PATH": os.environ["PATH"], "NCCL_IB_TC": "77", "HF_TOKEN": "secret"}
    with subprocess.Popen(["sleep", "600"], env=variables) as process:
        try:
            until = time.monotonic() + 60
            while True:  # until the child has become sleep
                tree = Tree()
                found = processes(tree, ThisMachine(), (process.pid, 2**22 + 5))
                if found.environments.get(process.pid, {}).get("NCCL_IB_TC") == "77":
                    break
                assert time.monotonic() < until, found
        finally:
            process.kill()
    assert "HF_TOKEN" not in found.environments[process.pid]
    assert tree.unexamined[f"environment of process {2**22 + 5}"] == "No such file or directory"
    assert process.pid not in found.jobs  # another test may have loaded the plugin into this one
