"""TOML that the library itself cannot read."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.config import ConfigError as ComputeConfigError
from compute.config import parse as parse_compute
from fabricd.config.loader import parse as parse_daemon
from telemetry.service.config_errors import ConfigError
from telemetry.service.toml_text import read_toml

DEEP = 100_000


@pytest.mark.parametrize(
    "deep", ["[" * DEEP + "]" * DEEP, "[" * DEEP, "{a=" * DEEP, "[{a=" * DEEP, "{a=[" * DEEP]
)
def test_brackets_without_end_are_a_problem_of_their_line(deep):
    text = f"# one\nx = 1\ny = {deep}\nz = 2\n"
    with pytest.raises(tomllib.TOMLDecodeError, match="at line 3"):
        read_toml(text)
    with pytest.raises(ConfigError, match=r"f\.toml:3: \(syntax\): values within values"):
        parse_daemon(text, "f.toml")
    with pytest.raises(ComputeConfigError, match=r"f\.toml:3: \(syntax\): values within"):
        parse_compute(text, "f.toml")


@given(st.text(alphabet="[]{}=\"a.\n#'1 ", max_size=300))
def test_what_it_reads_is_what_the_library_reads(text):
    def outcome(read):
        try:
            return read(text)
        except tomllib.TOMLDecodeError as error:
            return str(error)

    assert repr(outcome(read_toml)) == repr(outcome(tomllib.loads))


@pytest.mark.parametrize("depth", [50, 150, 250, 330, 400, 480, 600, 900])
def test_what_the_library_just_reads_is_a_problem_like_others(depth):
    text = f"y = {'[' * depth}{']' * depth}\n"
    with pytest.raises(ConfigError):
        parse_daemon(text, "f.toml")
    with pytest.raises(ComputeConfigError):
        parse_compute(text, "f.toml")
    table = f"[broker]\nhost = {'[' * depth}{']' * depth}\n"
    with pytest.raises(ConfigError):
        parse_daemon(table, "f.toml")
    with pytest.raises(ComputeConfigError):
        parse_compute(table, "f.toml")
