"""An operator whose hand slips, and who believes what the command has said."""

import pytest
from typer.testing import CliRunner

from compute.certificates import Authority
from compute.cli import app, certificate_commands
from compute.decide.job_state import job_state
from compute.decide.slow_ranks import SlowRank
from fabric_train.messages.documents import JobGeneration


@pytest.mark.parametrize("order", [("gpu-01", "gpu-l1"), ("gpu-l1", "gpu-01")])
def test_a_slip_in_one_name_keeps_no_other_host_in(tmp_path, monkeypatch, order):
    """It said "gpu-01: 1 certificates revoked", and the broker that ran was never told."""
    told = []
    monkeypatch.setattr(certificate_commands, "_tell_broker", lambda made, _: told.append(made))
    authority = Authority(tmp_path / "authority")
    for name in ("gpu-01", "gpu-02"):
        authority.client(name, "host")
    where = ["--dir", str(tmp_path), "--authority", str(tmp_path / "authority")]
    done = CliRunner().invoke(app, ["certificates", "revoke", *order, *where])
    assert done.exit_code == 1
    assert "gpu-l1 has no certificate" in done.stderr
    assert "gpu-01: 1 certificates revoked" in done.stdout
    assert [one.revoked for one in told] == [["gpu-01"]]


@pytest.mark.parametrize("host", ["\ud800", "h" * 5000])
def test_while_an_operator_has_stopped_it_no_name_of_a_rank_ends_it(host):
    """While it is stopped, ranks of a generation are shown whose hosts may be called anything."""
    slow = SlowRank(rank=0, host=host, ratio=2.0, own_ms=1.0, step_ms=2.0)
    generation = JobGeneration(1, 0, ["p"], [host], [], [], [], "", formed=True)
    state = job_state("gpt", "running", "stopped", generation, {}, [], [], [slow])
    assert len(state.slow_ranks[0].text) <= 2000
    state.model_dump_json()
