"""compute.toml: every problem at once, with its line; limits are those of the core."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.cli.run_command import policy_of
from compute.config import Config, PolicyTable, parse
from compute.decide.policy import Policy
from telemetry.service.config_errors import ConfigError

GOOD = '[broker]\nhost = "127.0.0.1"\n'


def problems(text):
    with pytest.raises(ConfigError) as caught:
        parse(text, "c.toml")
    return [(one.line, one.key, one.text) for one in caught.value.problems]


def test_a_broker_is_all_that_is_needed():
    config = parse(GOOD, "c.toml")
    assert config.mode_path.as_posix() == "/var/lib/fabric-compute/mode"
    assert config.broker.settings.effective_port == 1883
    assert config.ledger_key.as_posix() == "/var/lib/fabric-compute/ledger.key"


def test_the_example_that_is_shipped_is_valid():
    example = Path(__file__).parents[3] / "systemd" / "examples" / "compute.toml"
    config = parse(example.read_text(), "compute.toml")
    assert config.broker.settings.tls


def test_every_limit_of_the_core_can_be_configured_and_has_its_default():
    fields = {one.name: one.default for one in dataclasses.fields(Policy)}
    maintenance = fields.pop("maintenance")
    assert maintenance == ()
    assert PolicyTable().model_dump() == fields
    text = GOOD + "[policy]\nmin_observers = 3\nbudget_percent = 5\n"
    assert policy_of(parse(text, "c.toml")) == Policy(min_observers=3, budget_percent=5)


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("", 1, "broker", "missing"),
        ("[broker]\n", 1, "broker.host", "missing"),
        ('name = "localhost"\n' + GOOD, 1, "name", "what every machine calls itself"),
        ('[broker]\nhost = "a b"\n', 2, "broker.host", "host name"),
        (GOOD + "[policy]\nmin_observers = 0\n", 4, "policy.min_observers", "from 1 to 64"),
        (GOOD + "[policy]\nwait = 1\n", 4, "policy.wait", "allowed here: min_observers"),
        (GOOD + "[policy]\nbudget_least = 20\n", 4, "policy.budget_least", "over budget_most"),
        ('[broker]\nhost = "8.8.8.8"\n', 2, "broker.host", "ca_file"),
        (GOOD + 'key_file = "/k"\n', 3, "broker.key_file", "with cert_file"),
        (GOOD + 'cert_file = "/c"\nkey_file = "/k"\n', 3, "broker.cert_file", "with ca_file"),
        (GOOD + '[exec]\ncommand = ["fence"]\n', 4, "exec.command", "absolute"),
        (GOOD + "[exec]\ncommand = []\n", 4, "exec.command", "list of texts"),
        (GOOD + '[[maintenance]]\nhosts = ["h1"]\nend = 2027-01-01T00:00:00\n', 5,
         "maintenance[0].end", "no offset"),
        (GOOD + '[[maintenance]]\nhosts = ["h1"]\nbegin = 2027-01-02T00:00:00Z\n'
         "end = 2027-01-01T00:00:00Z\n", 6, "maintenance[0].end", "not after begin"),
        ("x = \n", 1, "(syntax)", "TOML"),
    ],
)  # fmt: skip
def test_a_problem_has_its_line_and_what_is_allowed(text, line, key, words):
    found = problems(text)
    assert [(at, name) for at, name, _ in found] == [(line, key)]
    assert words in found[0][2]


def test_all_problems_are_told_at_once():
    found = problems(
        'name = "-"\n[broker]\nhost = "1.2.3.4"\nport = 99999\n[metrics]\nlisten = 3\n'
    )
    assert [(line, key) for line, key, _ in found] == [
        (1, "name"), (3, "broker.host"), (4, "broker.port"), (6, "metrics.listen"),
    ]  # fmt: skip


def test_a_window_holds_from_its_begin_until_before_its_end():
    text = GOOD + (
        '[[maintenance]]\nhosts = ["h2", "h1"]\nbegin = 2027-01-01T10:00:00Z\n'
        "end = 2027-01-01T12:00:00+01:00\n"
        '[[maintenance]]\nhosts = ["h3"]\n'
    )
    config = parse(text, "c.toml")
    at = {hour: datetime(2027, 1, 1, hour, tzinfo=UTC) for hour in (9, 10, 11)}
    assert config.in_maintenance(at[9]) == ("h3",)
    assert config.in_maintenance(at[10]) == ("h1", "h2", "h3")
    assert config.in_maintenance(at[11]) == ("h3",)


@given(st.text(max_size=300))
def test_any_text_is_a_configuration_or_an_error_with_a_line(text):
    try:
        config = parse(text, "c.toml")
    except ConfigError as error:
        lines = [one.line for one in error.problems]
    else:
        assert isinstance(config, Config)
        return
    assert lines
    assert all(1 <= line <= text.count("\n") + 1 for line in lines)
