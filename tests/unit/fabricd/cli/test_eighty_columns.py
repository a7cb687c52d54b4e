"""Every command on a terminal of 80 columns, of a host with five kinds of fault and a job."""

import re

import pytest
from faulty_host import FLAPS, JOB, faulty
from typer.testing import CliRunner

import fabricd.cli
from fabricd.cli import base

WIDTH, PAGE = 80, 24
COMMANDS = [
    ["status"], ["links"], ["links", "--paths"], ["top", "--once", "-i", "0.1"],
    ["top", "--once", "-i", "0.1", "--groups"], ["jobs"], ["timeline"], ["timeline", "--detail"],
    ["timeline", "--link", "rail1"], ["events"], ["explain", "rail1"], ["explain", "rail2"],
    ["explain", "job", JOB], ["observations"], ["locate"], ["detector", "list"], ["check"],
    ["drain", "rail7"], ["--help"], ["timeline", "--help"], ["version"],
]  # fmt: skip
HEADED = {
    "links": "link state for weight flaps why",
    "top": "job rail send/s receive/s p99 notes",
    "jobs": "job phase procs rails sent notes",
}
SENTENCES = {"observations", "locate", "check", "events", "top", "drain", "timeline"}
"""These also print sentences, which a terminal wraps."""


@pytest.fixture
async def ask(tmp_path, monkeypatch):
    """Runs a command on a terminal's width; returns its lines."""
    monkeypatch.setattr(base.out, "_width", WIDTH)
    with faulty(tmp_path) as socket:

        def run(*words, code=0):
            environment = {"FABRIC_CTL_SOCKET": str(socket), "COLUMNS": str(WIDTH)}
            done = CliRunner().invoke(fabricd.cli.app, words, env=environment)
            assert code is None or done.exit_code == code, done.output
            return done.output.splitlines()

        yield run


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
async def test_no_header_is_broken_and_no_row_is_over_two_lines(ask, words):
    code = None if words == ["check"] else 0  # A link that settles meanwhile makes 2 a 1.
    lines = ask(*words, code=code)
    assert lines
    if words[0] not in SENTENCES:
        assert max(map(len, lines)) <= WIDTH
    if head := HEADED.get(words[0]):
        if "--groups" not in words:
            assert head in {" ".join(line.split()) for line in lines}
        longer = [number for number, line in enumerate(lines) if line.startswith(" ")]
        follows = [number for number in longer if number - 1 in longer]
        assert follows == [], "a row has three lines"


async def test_the_worst_link_is_the_first_and_says_why(ask):
    lines = ask("links")
    assert [line.split()[1] for line in lines if line.startswith("rail")][:5] == [
        "down", "hold", "degraded", "unknown", "suspect"
    ]  # fmt: skip
    assert lines[1].startswith("rail1")
    assert re.search(r"\b13 +no carrier", lines[1])
    assert "drained by uid 0" in " ".join(lines)


async def test_wide_has_every_column_and_each_row_on_one_line(ask):
    lines = ask("links", "-o", "wide")
    assert len(lines) == 9
    assert "queue tx/rx" in lines[0]
    assert not any("…" in line for line in lines)
    assert len(ask("links", "-o", "json")) > 100


async def test_the_first_flap_of_an_hour_is_on_the_first_page(ask):
    for words in (["timeline", "--since", "1h"], ["timeline"]):
        page = ask(*words)[:PAGE]
        (first,) = [line for line in page if "lost its carrier" in line]
        assert f"{FLAPS} times" in first
        assert any("up → down" in line for line in page)
    plain = "\n".join(ask("timeline"))
    assert "path_down" not in plain
    assert "detail=" not in plain
    assert f"job {JOB}: " in plain
    assert "path_down" in "\n".join(ask("timeline", "--detail", "--kind", "plugin"))


async def test_rows_that_are_missing_are_said_with_the_way_to_see_them(ask):
    lines = ask("timeline", "--limit", "2")
    (note,) = {line for line in lines if "not shown" in line}
    wanted = re.search(r"\((\d+) earlier moments are not shown: --limit (\d+)", note)
    assert int(wanted[2]) == int(wanted[1]) + 2
    assert lines[0] == note, "at the top"
    assert not any("not shown" in line for line in ask("timeline", "--limit", wanted[2]))
    assert "earlier moments are not shown" in ask("timeline", "--detail", "--limit", "9")[0]
    assert "there are earlier ones" in "".join(ask("timeline", "--json", "--limit", "9"))


async def test_several_kinds_an_end_and_a_link_that_is_none(ask):
    whole = ask("timeline", "--kind", "flap", "--kind", "located", "--json")
    assert {"flap", "located"} == set(re.findall(r'"kind": "(\w+)"', "".join(whole)))
    early = ask("timeline", "--since", "2h", "--until", "1470s")
    assert any("started" in line for line in early)
    assert not any("lost its carrier" in line for line in early)
    (said,) = ask("timeline", "--link", "rail9", code=1)
    assert 'no link "rail9"; allowed: rail0, rail1' in said
    assert "allowed: flap, carrier_up" in " ".join(
        " ".join(ask("timeline", "--kind", "flop", code=2)).split()
    ).replace("│ ", "")


async def test_a_job_that_moves_bytes_is_listed_without_a_broker(ask):
    lines = ask("jobs")
    (row,) = [line for line in lines if line.startswith(JOB)]
    assert "7 of 8" in row
    assert "dead paths on rail1" in row
    assert not any("broker" in line for line in lines)


async def test_a_drain_says_what_is_left_and_whose_jobs_run(ask):
    said = ask("drain", "rail7")
    (left,) = [line for line in said if line.startswith("left: ")]
    assert re.match(r"left: \d of 8 links carry: rail0, ", left)
    assert not {"rail1", "rail4", "rail7"} & set(left.replace(",", "").split())
    assert any(line.startswith("  rail1 down (no carrier") for line in said)
    assert f"jobs that go on over what is left: {JOB} (1 process)" in said


async def test_a_host_that_steers_is_not_told_what_observing_missed(ask):
    said = " ".join(ask("promote", "steer", "--yes"))
    assert "It steers already" in said
    assert "In observe mode, steering would have changed nothing" not in said
    assert "drained by" not in said
