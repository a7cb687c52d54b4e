"""``./run lab``: exit statuses, output, errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def lab(*arguments, check=None):
    done = subprocess.run(
        [sys.executable, "-m", "lab", *arguments],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    if check is not None:
        assert done.returncode == check, done.stdout + done.stderr
    return done


@pytest.fixture
def up(lab_name):
    lab("up", "--name", lab_name, "--hosts", "2", "--rails", "2", "--no-daemons", check=0)
    yield lab_name
    lab("down", "--name", lab_name)


def test_up_status_exec_fault_down(up):
    listed = json.loads(lab("list", "--json", check=0).stdout)
    mine = next(row for row in listed if row["name"] == up)
    assert (mine["state"], mine["hosts"], mine["rails"]) == ("ready", 2, 2)

    done = lab("exec", "--name", up, "h0", "--", "ping", "-c1", "-W10", "10.1.0.2", check=0)
    assert "1 received" in done.stdout
    assert lab("exec", "--name", up, "h0", "--", "sh", "-c", "exit 7").returncode == 7
    done = lab("exec", "--name", up, "h1", "--", "sh", "-c", "echo $FABRIC_RUN_DIR", check=0)
    assert done.stdout == f"/run/fabric-lab/{up}/h1/run\n"

    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lab",
            "fault",
            "carrier",
            "h0:rail1",
            "--name",
            up,
            "--seconds",
            "0",
        ],
        cwd=REPO,
        stdout=subprocess.PIPE,
        text=True,
    ) as fault:
        assert "started" in fault.stdout.readline()
        status = json.loads(lab("status", "--name", up, "--json", check=0).stdout)
        states = [p["state"] for p in status["host_rows"][0]["ports"]]
        assert states == ["up", "no-carrier"]
        assert [f["fault"] for f in status["faults"]] == ["carrier"]
        fault.terminate()
        assert fault.wait(60) == 0
    status = json.loads(lab("status", "--name", up, "--json", check=0).stdout)
    assert [p["state"] for p in status["host_rows"][0]["ports"]] == ["up", "up"]
    assert status["faults"] == []

    lab("fault", "flap", "h1:rail0", "--name", up, "--period-ms", "2", "--count", "30", check=0)
    status = json.loads(lab("status", "--name", up, "--json", check=0).stdout)
    port = status["host_rows"][1]["ports"][0]
    assert port["carrier_downs"] == status["host_rows"][1]["ports"][1]["carrier_downs"] + 30

    lab("down", "--name", up, check=0)
    assert up not in lab("list", check=0).stdout
    lab("down", "--name", up, check=1)


@pytest.fixture(scope="module")
def standing(lab_root):
    name = f"t{os.getpid()}-standing"
    lab("up", "--name", name, "--hosts", "2", "--rails", "2", "--no-daemons", check=0)
    yield name
    lab("down", "--name", name, check=0)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["fault", "carrier", "h9:rail0"], 2, "no host 9"),
        (["fault", "carrier", "h0:rail9"], 2, "no rail 9"),
        (["fault", "carrier", "h0"], 2, "takes a target like h1:rail2"),
        (["fault", "leaf", "spine0"], 2, "takes a target like leaf0"),
        (["fault", "loss", "h0:rail0", "--percent", "0"], 2, "percent"),
        (["fault", "flap", "h0:rail0", "--period-ms", "0.2"], 2, "period"),
        (["fault", "unplug", "h0:rail0"], 2, "unplug"),
        (["fault", "carrier", "h0:rail0", "--seconds", "-1"], 2, "seconds"),
        (["exec", "h5", "--", "true"], 2, "no host 5"),
        (["exec", "h0:rail0", "--", "true"], 2, "is a port"),
        (["up", "--no-daemons"], 1, "is up"),
        (["up", "--hosts", "99"], 2, "1 to 64"),
        (["up", "--rate", "fast"], 2, "rate"),
    ],
)
def test_errors_say_what_is_wrong(standing, arguments, status, text):
    done = lab(arguments[0], "--name", standing, *arguments[1:], check=status)
    assert text in done.stderr


def test_no_such_lab(lab_root):
    for command in (["status"], ["down"], ["fault", "carrier", "h0:rail0"], ["exec", "h0", "ls"]):
        done = lab(command[0], "--name", "nobody", *command[1:], check=1)
        assert "no lab 'nobody'" in done.stderr


def test_without_root(lab_root, open_checkout):
    python = open_checkout / Path(sys.executable).relative_to(REPO)
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", python, "-m", "lab", "up"],
        cwd=open_checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "needs root" in done.stderr


def test_help_shows_an_example():
    done = lab("--help", check=0)
    assert "Example:" in done.stdout
    assert "Example:" in lab("fault", "--help", check=0).stdout
