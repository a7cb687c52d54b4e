"""Tables for terminals: what is cut, what never is, and which row is the first."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.cli import clock_command, show_links, top
from fabricd.cli.base import PlainConsole
from fabricd.cli.tables import LINES, put_table, table

NAMES = ("link", "state", "for", "weight", "flaps", "why")
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=300)


def printed(made, width=80, **how):
    file = io.StringIO()
    put_table(made, PlainConsole(file=file, width=width), **how)
    return file.getvalue().splitlines()


@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(60, 200))
def test_no_row_takes_more_than_its_lines_whatever_it_says(texts, width):
    rows = [("rail0", "down", "1.0 h", "0 %", "13", text) for text in texts]
    lines = printed(table(NAMES, rows, left="state"), width)
    assert len(lines) <= 1 + LINES * len(rows)
    assert sum(line.startswith("rail0") for line in lines) == len(rows)
    assert lines[0].split() == list(NAMES)


def test_what_is_cut_says_so_and_what_fits_is_whole():
    words = " ".join(f"word{n}" for n in range(60))
    cut = printed(table(NAMES, [("rail0", "down", "1 s", "0 %", "1", words)]))
    assert cut[-1].rstrip().endswith("…")
    whole = printed(table(NAMES, [("rail0", "down", "1 s", "0 %", "1", words)]), wide=True)
    assert whole[-1].endswith("word59")
    assert len(whole) == 2
    assert not any(line.endswith(" ") for line in whole)
    short = printed(table(NAMES, [("rail0", "down", "1 s", "0 %", "1", "no carrier")]))
    assert "…" not in "".join(short)


def test_a_colour_stays_within_its_cell():
    file = io.StringIO()
    console = PlainConsole(file=file, width=80, force_terminal=True, color_system="standard")
    put_table(table(("state", "why"), [(show_links.state("down"), "x")]), console)
    assert re.search(r"\x1b\[31mdown *\x1b\[0m", file.getvalue())


def link(netdev, state="up", **more):
    delay = {"queue_tx_p50_us": None, "queue_rx_p50_us": None}
    return {"netdev": netdev, "rail": 0, "state": state, "reason": "", "condition": "fine",
            "since_s": 1.0, "weight": 1.0, "flaps": 0, "paths": [], "delay": delay,
            **more}  # fmt: skip


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (link("b", "down"), link("a", "degraded")),
        (link("b", "hold"), link("a", "suspect")),
        (link("b", "unknown"), link("a")),
        (link("b", condition="slow"), link("a")),
        (link("b", unwatched="not probed"), link("a")),
        (link("b", flaps=3, flaps_last_hour=3), link("a", flaps=9)),
        (link("b"), link("a", "admin")),
        (link("a"), link("b")),
    ],
)
def test_the_worst_link_is_the_first(worse, better):
    for given_ in ([worse, better], [better, worse]):
        lines = printed(show_links.links(given_))
        assert [line.split()[0] for line in lines[1:]] == [worse["netdev"], better["netdev"]]


def test_a_link_says_all_that_is_wrong_with_it():
    said = show_links.why(
        link("a", "suspect", reason="2 % lost", condition="congested", named=True, risk=0.83,
             flaps=13, flaps_last_hour=1, maintenance=True, unwatched="not probed for 12 s")
    )  # fmt: skip
    assert said == (
        "2 % lost; congested; not probed for 12 s; may fail soon: risk 0.83; "
        "1 flap in the last hour; maintenance"
    )
    assert show_links.why(link("a", reason="the carrier is back")) == "", "of a sound one nothing"


def test_silent_paths_are_the_first_and_each_has_its_address():
    def path(peer, state="up", **more):
        return {"peer": peer, "peer_rail": 0, "state": state, "heard": True, "rtt_us": 20.0,
                "address": f"fd00::{peer}", "delay": link("a")["delay"]} | more  # fmt: skip

    found = [path("1"), path("2", heard=False), path("3", "down"), path("4", gone=True)]
    lines = printed(show_links.paths([link("rail0", paths=found)]))
    assert [line.split()[2] for line in lines[1:]] == ["3/0", "2/0", "1/0", "4/0"]
    assert "fd00::2 (silent)" in lines[2]
    assert "fd00::4 (bye)" in lines[4]


def test_a_job_is_told_in_a_sentence():
    rows = [
        top.Row("gpt-17b", "rail0", processes=2, tx_bytes_s=2e9, live_paths=3),
        top.Row("gpt-17b", "rail1", processes=2, dead_paths=3, stall_share=0.12, failovers=40,
                slow="takes 3 ms"),
    ]  # fmt: skip
    assert top.sentences(rows) == [
        "gpt-17b: 2 processes, 2 rails, sends 2.00 GB/s; 1 of them with dead paths; rail1 slow; "
        "stalled 12 % of the time; 40 failovers so far"
    ]
    lines = printed(top.table(rows, groups=False))
    assert "rail1 SLOW" in lines[1], "the bad one is the first"
    assert "3 of 3 paths dead" in lines[1]


@given(st.text(max_size=90), st.integers(3, 40))
def test_a_long_name_keeps_both_ends(name, width):
    short = top.middle(name, width)
    assert len(short) <= max(width, 0)
    if len(name) <= width:
        assert short == name
    else:
        assert short[0] == name[0]
        assert short[-1] == name[-1]


def test_clock_paths_have_names_and_fit_a_terminal():
    path = {
        "netdev": "rail0", "peer": "10.0.0.2", "host": 7, "name": "gpu-07.site-a", "kept": None,
        "offset_ns": -123.4, "slope": None, "half_rtt_ns": 21_300.0, "spread_ns": 140.0,
        "surplus_ns": 12.0, "out_ns": 20_000.0, "back_ns": 22_000.0, "way_bound_ns": 300.0,
        "source_port": 50_001, "judged": "asymmetric",
    }  # fmt: skip
    for made in (clock_command.sources, clock_command.ways):
        lines = printed(made([path]))
        assert max(map(len, lines)) <= 80
        assert len(lines[0].split("  ")) >= 6
        assert "gpu-07.site-a" in lines[1]
        assert "asymmetric, port 50001" in " ".join(" ".join(lines[1:]).split())
        assert "surplus" in printed(made([path], wide=True), wide=True)[0]
