"""``./run lab vm`` on the session's RDMA lab: what its owner answers."""

import json

import pytest
from rdma_lab import clean, until
from typer.testing import CliRunner

from lab.lifecycle.registry import LabError
from lab.topology import TopologyError
from lab.vm.rdma import cli, client, owner, registry

RUN = CliRunner()


@pytest.fixture
def lab(namespaces):
    """The session's lab, served as its owner would."""
    with owner.serving(namespaces):
        yield from clean(namespaces)


def said(lab, *words):
    """What a command prints, and its exit status."""
    command, *rest = words
    done = RUN.invoke(cli.app, [command, "--name", lab.topology.name, *rest])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout, done.exit_code


def test_commands_and_their_exit_status(lab):
    out, status = said(lab, "ssh", "h2", "--", "rdma", "-j", "link")
    assert status == 0
    assert {link["ifname"] for link in json.loads(out)} == {"rxe0", "rxe1"}
    assert said(lab, "ssh", "h0", "--", "sh", "-c", "exit 3")[1] == 3
    with pytest.raises(TopologyError, match="no host 9"):
        said(lab, "ssh", "h9", "--", "true")
    assert said(lab, "dmesg") == ("no kernel faults\n", 0)


def test_a_fault_by_hand_is_in_force_and_ends(lab):
    out, status = said(lab, "fault", "roce-drop", "h1:rail0", "--seconds", "0.2")
    assert status == 0
    assert "started" in out
    assert "ended" in out
    rows = lab.truth()[-2:]
    assert [(row["fault"], row["phase"]) for row in rows] == [
        ("roce-drop", "start"), ("roce-drop", "end"),
    ]  # fmt: skip
    assert rows[0]["guest_ns"][0] <= rows[0]["guest_ns"][1] < rows[1]["guest_ns"][0]
    with pytest.raises(TopologyError, match="no parameter 'percent'"):
        said(lab, "fault", "rxe", "h1:rail0", "--set", "percent=3")


def test_a_fault_ends_with_its_client(lab):
    fields = {"kind": "carrier", "target": "h3:rail0", "seconds": 0, "parameters": {}}
    with client.request(lab.topology.name, "fault", **fields) as answers:
        next(answers)
        found = json.loads(said(lab, "status", "--json")[0])
        assert [fault["target"] for fault in found["faults"]] == ["h3:rail0"]
        found = {link["ifname"]: link["state"] for link in found["hosts"][3]["devices"]}
        assert found == {"rxe0": "DOWN", "rxe1": "ACTIVE"}

    def ended():
        return json.loads(said(lab, "status", "--json")[0])["faults"] == []

    until(ended, "the fault ends with its connection")


def test_a_lab_that_is_not_up(lab):
    with pytest.raises(LabError, match="no RDMA lab 'other'"):
        registry.ready("other")
