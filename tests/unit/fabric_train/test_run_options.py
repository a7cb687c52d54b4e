from pathlib import Path

import pytest

from fabric_train import run
from fabric_train.rules.protection import Placement, Protection, protection, statement

SCRIPT = str(Path(__file__))
PLACES = ("SLURM_NODEID", "JOB_COMPLETION_INDEX", "NODE_RANK", "GROUP_RANK", "FABRIC_RUN_DIR")


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)


def options(*args):
    return run._host_options(run._parser().parse_args([*args, SCRIPT, "--lr", "0.1"]))


def test_a_host_of_a_job_takes_what_the_command_line_says():
    got = options("--job", "gpt", "--nodes", "4", "--spares", "1", "--nproc-per-node", "8",
                  "--standby", "2", "--address", "127.0.0.9", "--daemon", "/x")  # fmt: skip
    assert (got.job, got.nodes, got.spares, got.nproc, got.standby) == ("gpt", 4, 1, 8, 2)
    assert (got.address, got.daemon, got.node_rank) == ("127.0.0.9", Path("/x"), None)
    assert got.argv[-3:] == [SCRIPT, "--lr", "0.1"]


def test_without_more_a_host_has_one_standby_and_the_job_no_spare_host(monkeypatch):
    got = options("--nodes", "2", "--interface", "lo")
    assert (got.spares, got.standby, got.address, got.daemon) == (
        0, 1, "127.0.0.1", Path("/run/fabricd"),
    )  # fmt: skip
    monkeypatch.setenv("FABRIC_RUN_DIR", "/elsewhere")
    assert options("--nodes", "2", "--interface", "lo").daemon == Path("/elsewhere")


def test_the_place_of_a_host_is_the_schedulers_unless_it_is_given(monkeypatch):
    monkeypatch.setenv("NODE_RANK", "7")
    monkeypatch.setenv("SLURM_NODEID", "3")
    assert options("--nodes", "2", "--interface", "lo").node_rank == 3
    assert options("--nodes", "2", "--interface", "lo", "--node-rank", "0").node_rank == 0
    monkeypatch.setenv("SLURM_NODEID", "what?")
    assert options("--nodes", "2", "--interface", "lo").node_rank == 7


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--nodes", "0"], "--nodes 0"),
        (["--nodes", "2", "--standby", "-1"], "--standby -1"),
        (["--nodes", "2", "--spares", "-1"], "--spares -1"),
        (["--nodes", "2", "--node-rank", "-1"], "--node-rank -1"),
        (["--nodes", "2", "--job", "x-"], "--job 'x-'"),
        (["--nodes", "2", "--address", "here"], "here"),
    ],
)
def test_what_cannot_be_is_refused_and_named(args, text):
    with pytest.raises(run.UsageError, match=text):
        options(*args)


def test_the_protection_report_is_said_and_written_and_a_file_that_cannot_be_does_no_harm(
    tmp_path, capsys
):
    said = statement({"model": "Net"}, {}, ["an Ema"])
    report = protection(said, Placement("gpt", ["a", "b", "c"], {}, ["d"], 1))
    run._Announcer(tmp_path / "report.json").announce(report)
    assert Protection.decode((tmp_path / "report.json").read_bytes()) == report
    assert "fabric-run: UNPROTECTED: an Ema" in capsys.readouterr().err
    run._Announcer(tmp_path / "missing" / "report.json").announce(report)
    assert "report.json: No such file or directory" in capsys.readouterr().err
