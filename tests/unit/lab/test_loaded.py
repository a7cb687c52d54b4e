"""The load is there while the command runs, and gone after it."""

import pytest

from lab.testrun import loaded


@pytest.fixture
def stressors(monkeypatch, tmp_path):
    """Stands for stress-ng: writes when it begins, and when it is told to end."""
    path = tmp_path / "stress-ng"
    path.write_text(
        f"#!/bin/sh\ntrap 'echo ended >>{tmp_path}/load; exit 0' TERM\n"
        f'echo "$@" >>{tmp_path}/load\nwhile :; do sleep 0.01; done\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "load"


def run(tmp_path, stressors, status, *options):
    seen = f"until grep -q cpu {stressors}; do sleep 0.01; done; echo run >>{tmp_path}/runs"
    return loaded.main([*options, "--", "/bin/sh", "-c", f"{seen}; exit {status}"])


def test_the_command_runs_that_often_beside_the_load(tmp_path, stressors):
    assert run(tmp_path, stressors, 0, "--cores", "3", "--times", "2") == 0
    assert (tmp_path / "runs").read_text() == "run\nrun\n"
    begun, ended = stressors.read_text().splitlines()
    assert "--cpu 3" in begun
    assert ended == "ended"


def test_the_first_failure_ends_it_and_the_load(tmp_path, stressors):
    assert run(tmp_path, stressors, 7, "--times", "5") == 7
    assert (tmp_path / "runs").read_text() == "run\n"
    assert stressors.read_text().endswith("ended\n")


def test_no_command_is_a_mistake(capsys):
    with pytest.raises(SystemExit):
        loaded.main(["--times", "2"])
    assert "no command" in capsys.readouterr().err
