"""What operators say by files and message reaches the core once, and is recorded."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from compute.cli import app
from compute.config import parse
from compute.operator_files import read_drained, read_mode, read_stop
from compute.operators import OperatorWatch
from telemetry.messages.documents import Stop

NO_STOP = Stop(stopped=False)
WALL = datetime(2027, 1, 1, 10, tzinfo=UTC)


class Inputs:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments, **named):
            if name != "set_mode" or (name, *arguments[:1]) not in self.calls[-1:]:
                self.calls.append((name, *arguments[:-1], *named.values()))

        return call


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


class Host:
    """A management host's files, its commands, and who watches them."""

    def __init__(self, where):
        self.where = where
        text = (
            f'name = "c0"\nstate_dir = "{where}"\nstop_file = "{where}/STOP"\n'
            '[broker]\nhost = "127.0.0.1"\n'
            '[[maintenance]]\nhosts = ["h7"]\nbegin = 2027-01-01T11:00:00Z\n'
            "end = 2027-01-01T12:00:00Z\n"
        )
        self.config = where / "compute.toml"
        self.config.write_text(text)
        self.core, self.notes = Inputs(), []
        self.watch = OperatorWatch(
            parse(text, "c"), self.core, lambda kind, fields: self.notes.append((kind, fields))
        )

    def call(self, *words, code=0):
        done = CliRunner().invoke(app, [*words, "--config", str(self.config)])
        assert done.exit_code == code, done.output
        return done.output + done.stderr

    def look(self, wall=WALL, message=NO_STOP):
        self.watch.look(0.0, wall)
        self.watch.apply_stop(message, 0.0)
        calls, self.core.calls = self.core.calls, []
        notes, self.notes[:] = list(self.notes), []
        return [call for call in calls if call[0] != "set_mode"], notes


def test_nothing_that_is_said_is_nothing_that_is_recorded(host):
    assert host.look() == ([("stop", False, "")], [])
    assert host.look() == ([], [])
    assert host.watch.mode == "observe"


def test_promote_and_demote(host):
    host.look()
    host.call("promote", "migrate")
    assert host.look() == ([], [("mode", {"from": "observe", "to": "migrate"})])
    assert host.watch.mode == "migrate"
    host.call("demote")
    assert host.look() == ([], [("mode", {"from": "migrate", "to": "observe"})])
    host.call("promote", "steer", code=2)
    assert host.watch.mode == "observe"


def test_stop_and_resume_by_file_and_message_count_each_by_itself(host):
    host.look()
    host.call("stop", "--reason", "switch work")
    assert host.look()[0] == [("stop", True, "switch work")]
    message = Stop(stopped=True, reason="all")
    assert host.look(message=message) == ([], []), "it is stopped already"
    host.call("resume")
    assert host.look(message=message)[0] == [("stop", True, "all")]
    assert host.look() == ([("stop", False, "")], [("stop", {"stopped": False, "reason": ""})])


def test_a_stop_file_that_cannot_be_looked_at_counts_as_there(host, tmp_path):
    stop = tmp_path / "STOP"
    stop.symlink_to(tmp_path / "nowhere")
    assert read_stop(stop) == (True, f"{stop} is there")
    (tmp_path / "file").touch()
    assert read_stop(tmp_path / "file" / "STOP") == (False, "")
    assert read_stop(tmp_path / ("x" * 300))[0] is True
    stop.unlink()
    stop.mkdir()
    assert read_stop(stop)[0] is True


@pytest.mark.parametrize("content", ["", "MIGRATE", "migrate x", "x" * 5000, "\0"])
def test_a_mode_file_that_makes_no_sense_is_observe(tmp_path, content):
    (tmp_path / "mode").write_text(content)
    mode, problem = read_mode(tmp_path / "mode")
    assert (mode, bool(problem)) == ("observe", True)


def test_drains(host):
    host.look()
    host.call("drain", "h1")
    host.call("drain", "h2", "--to", "h5")
    calls, notes = host.look()
    assert sorted(calls) == [("drain", "h1", ""), ("drain", "h2", "h5")]
    assert sorted(fields["host"] for _, fields in notes) == ["h1", "h2"]
    host.call("undrain", "h1")
    assert host.look() == ([("undrain", "h1")], [("undrain", {"host": "h1"})])
    assert "not drained" in host.call("undrain", "h1", code=1)
    host.call("drain", "a/b", code=2)
    host.call("drain", "h3", "--to", "a b", code=2)
    assert read_drained(host.where / "drained.json") == {"h2": "h5"}


def test_a_spoiled_list_of_drains_undrains_nobody_and_is_not_overwritten(host):
    host.call("drain", "h1")
    host.look()
    (host.where / "drained.json").write_text("{")
    assert host.look() == ([], [])
    host.call("drain", "h2", code=1)
    assert (host.where / "drained.json").read_text() == "{"


@given(st.text(max_size=60) | st.dictionaries(st.text(max_size=5), st.text(max_size=5)
       | st.integers() | st.none()).map(json.dumps))  # fmt: skip
def test_any_list_of_drains_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "drained.json"
    path.write_text(text)
    try:
        drained = read_drained(path)
    except ValueError:
        return
    assert all(isinstance(one, str) for one in [*drained, *drained.values()])


def test_a_maintenance_window_begins_and_ends(host):
    host.look()
    assert host.look(WALL.replace(hour=11))[0] == [("set_maintenance", ("h7",))]
    assert host.look(WALL.replace(hour=11))[0] == []
    assert host.look(WALL.replace(hour=12))[0] == [("set_maintenance", ())]
