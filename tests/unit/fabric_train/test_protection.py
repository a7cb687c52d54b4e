"""What a job says to be protected, by whom, and what it names as unprotected."""

import pytest

from fabric_train.rules.agreement import (
    Beginning,
    DisagreementError,
    agree,
    layout_difference,
    layout_of,
)
from fabric_train.rules.protection import Placement, Protection, protection, statement

SAID = statement({"model": "Net of 2 tensors, 8 bytes"}, {"random generators": "python"}, [])


def report(hosts, spares=(), warm=1, said=SAID):
    ring = list(dict.fromkeys(hosts))
    buddies = {host: [one for one in ring if one != host][:2] for host in ring}
    return protection(said, Placement("gpt", hosts, buddies, spares, warm))


def test_a_job_of_several_hosts_with_a_spare_has_nothing_unprotected():
    got = report(["a", "a", "b", "b", "c", "c"], ["d"])
    assert got.ranks == {"a": [0, 1], "b": [2, 3], "c": [4, 5]}
    assert got.buddies["b"] == ["a", "c"]
    assert (got.unprotected, got.warnings) == ([], [])
    assert got == Protection.decode(got.encode())
    text = "\n".join(got.lines())
    assert "6 ranks on 3 hosts (a, b, c)" in text
    assert "of a on b and c" in text
    assert "model: Net of 2 tensors" in text


@pytest.mark.parametrize(
    ("hosts", "spares", "warm", "unprotected", "warning"),
    [
        (["a"], (), 0, "one rank, so there is no replica", None),
        (["a", "a"], (), 1, "all state against the loss of a", None),
        (["a", "a"], (), 0, "all state against the loss of a", "no spare:"),
        (["a", "b", "c"], (), 0, None, "no spare:"),
        (["a", "b", "c"], (), 1, None, "no spare host"),
        (["a", "b"], ("c",), 1, None, None),
        (["a", "b"], (), 1, None, "a majority of two"),
    ],
)
def test_what_the_hosts_of_a_job_cannot_protect_is_named(hosts, spares, warm, unprotected, warning):
    got = report(hosts, spares, warm)
    for wanted, found in ((unprotected, got.unprotected), (warning, got.warnings)):
        assert bool(found) == (wanted is not None), found
        assert wanted is None or any(wanted in one for one in found)


def test_what_a_process_has_found_is_in_the_report_in_its_order():
    got = report(["a", "b", "c"], ["d"], said=statement({}, {}, ["one", "two"]))
    assert got.unprotected == ["one", "two"]
    assert got.lines()[-2:] == ["UNPROTECTED: one", "UNPROTECTED: two"]


def test_ranks_that_begin_alike_take_the_name_of_the_run_from_rank_0():
    facts = {"optimizer group 0 lr": "0.1"}
    ranks = [Beginning(run, facts).encode() for run in ("x", "y")]
    assert agree(lambda mine: [*ranks, mine], Beginning("z", facts)) == "x"


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"model": "Net", "lr": "0.2"}, "lr is 0.2 on rank 1 and 0.1 on rank 0"),
        ({"lr": "0.1"}, "model is absent on rank 1 and Net on rank 0"),
        ({"model": "Net", "lr": "0.1", "ema": "Net"}, "ema is Net on rank 1 and absent on rank 0"),
    ],
)
def test_ranks_that_differ_are_told_in_what_and_where(other, text):
    first = Beginning("x", {"model": "Net", "lr": "0.1"})
    with pytest.raises(DisagreementError, match=text):
        agree(lambda mine: [first.encode(), mine], Beginning("y", other))


def test_layouts_differ_by_name():
    mine = layout_of({"model": "a", "optimizer": "b", "buckets of DDP": "c"})
    other = layout_of({"model": "a", "optimizer": "x", "ema = 1": "y", "buckets of DDP": "c"})
    assert layout_difference("one", "other") == "the state"
    assert layout_difference(mine, other) == "ema___1, optimizer"
