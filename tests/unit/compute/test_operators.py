"""What operators say by files and message reaches the core once, and is recorded."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from typer.testing import CliRunner

from compute.cli import app
from compute.config import parse
from compute.operator_files import (
    CONFIRMED_S,
    read_confirmed,
    read_drained,
    read_mode,
    read_stop,
)
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


class Refusing(Inputs):
    """A core that does not take a confirmed loss while ``problem`` is set."""

    problem = "h2 is connected to the broker: it is not lost"

    def confirm_lost(self, host, reason, now):
        self.calls.append(("confirm_lost", host, reason))
        return self.problem


def wall_of(host, name="h2"):
    at = read_confirmed(host.where / "confirmed.json")[name].at
    return datetime.fromtimestamp(at, UTC)


def test_what_is_confirmed_is_taken_once_and_recorded(host):
    host.look()
    host.core.confirm_lost = lambda *said: host.core.calls.append(("lost", *said)) or ""
    said = host.call("confirm-lost", "h2", "--reason", "the PDU is off")
    assert "h2: confirmed lost" in said
    calls, notes = host.look(wall_of(host))
    assert calls == [("lost", "h2", "the PDU is off", 0.0)]
    fields = {"host": "h2", "reason": "the PDU is off", "problem": ""}
    assert notes == [("confirm_lost", fields)]
    assert host.look() == ([], [])
    assert json.loads(host.call("confirm-repaired", "h2", "--json")) == {
        "host": "h2", "confirmed": "repaired",
    }  # fmt: skip
    calls, notes = host.look(wall_of(host))
    assert calls == [("confirm_repaired", "h2")]
    assert [kind for kind, _ in notes] == ["confirm_repaired"]
    assert host.look() == ([], [])


def test_ranks_of_a_broken_place_are_taken_together(host):
    host.look()
    host.core.confirm_broken = lambda *said: host.core.calls.append(("broken", *said)) or ""
    host.call("confirm-broken", "h2", "--rank", "5", "--reason", "Xid 79")
    said = host.call("confirm-broken", "h2", "--rank", "3", "--reason", "Xid 95")
    assert "h2: confirmed broken" in said
    calls, notes = host.look(wall_of(host))
    assert calls == [("broken", "h2", (3, 5), "Xid 95", 0.0)]
    fields = {"host": "h2", "reason": "Xid 95", "problem": "", "ranks": [3, 5]}
    assert notes == [("confirm_broken", fields)]
    assert host.look() == ([], [])
    host.call("confirm-broken", "h2", code=2)
    host.call("confirm-broken", "h2", "--rank", "-1", code=2)


def test_a_loss_that_is_not_taken_is_tried_again_and_dropped_when_it_is_old(host):
    host.core = host.watch._core = Refusing()
    host.call("confirm-lost", "h2")
    wall = wall_of(host)
    for _ in range(3):
        calls, notes = host.look(wall)
        assert ("confirm_lost", "h2", "") in calls
        assert not notes
    _, notes = host.look(wall + timedelta(seconds=CONFIRMED_S + 1))
    [(kind, fields)] = notes
    assert kind == "confirm_lost"
    assert "connected to the broker" in fields["problem"]
    assert "601 s old, and dropped" in fields["problem"]
    assert read_confirmed(host.where / "confirmed.json") == {}


def test_a_word_of_before_a_clock_that_was_set_back_is_dropped(host):
    host.core = host.watch._core = Refusing()
    host.call("confirm-lost", "h2")
    host.look(wall_of(host) - timedelta(seconds=CONFIRMED_S + 1))
    assert read_confirmed(host.where / "confirmed.json") == {}


@pytest.mark.parametrize(
    "content",
    [
        "[]", "{", '{"h2": 3}', '{"h2": {"what": "lost"}}', "[" * 100_000,
        '{"../h2": {"what": "lost", "at": 1, "reason": ""}}',
        '{"h2": {"what": "dead", "at": 1, "reason": ""}}',
        '{"h2": {"what": "lost", "at": "now", "reason": ""}}',
        '{"h2": {"what": "broken", "at": 1, "reason": ""}}',
        '{"h2": {"what": "broken", "at": 1, "reason": "", "ranks": []}}',
        '{"h2": {"what": "broken", "at": 1, "reason": "", "ranks": [true]}}',
        '{"h2": {"what": "broken", "at": 1, "reason": "", "ranks": [-1]}}',
        '{"h2": {"what": "lost", "at": NaN, "reason": ""}}',
        '{"h2": {"what": "lost", "at": true, "reason": ""}}',
        '{"h2": {"what": "lost", "at": 1' + 400 * "0" + ', "reason": ""}}',
    ],
)  # fmt: skip
def test_a_file_of_confirmed_losses_that_makes_no_sense_changes_nothing(host, content):
    host.look()
    (host.where / "confirmed.json").write_text(content)
    assert host.look() == ([], [])
    host.call("confirm-lost", "h2", code=1)
    assert (host.where / "confirmed.json").read_text() == content


def test_a_host_that_there_is_not_is_named(host):
    known = []
    host.watch = OperatorWatch(
        parse(host.config.read_text(), "c"), host.core, lambda *_: None, lambda: known
    )
    host.call("drain", "h22", "--to", "h3")
    host.call("drain", "h2")

    def said(now, wall=WALL):
        with capture_logs() as logs:
            host.watch.look(now, wall)
        return [entry["error"] for entry in logs if entry["log_level"] == "error"]

    assert said(0.0) == [], "nothing is known of any host"
    known += ["h1", "h2"]
    assert said(100.0) == said(129.0) == [], "more may come"
    assert said(130.0) == ["drained: h22", "to take over: h3"]
    assert said(131.0) == [], "once"
    known += ["h22", "h3"]
    assert said(132.0) == []
    assert said(133.0, WALL + timedelta(hours=1)) == ["in maintenance: h7"]


def test_what_is_no_host_is_not_confirmed(host):
    host.call("confirm-lost", "../h2", code=2)
    assert not (host.where / "confirmed.json").exists()
