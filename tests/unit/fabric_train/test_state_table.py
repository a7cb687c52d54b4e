"""docs/operate/train-state.md: each row has its test, and what is named is named."""

import gc
import importlib
import re
from pathlib import Path

from on_demand import on_demand
from one_rank import Rank, Script, advance, assert_alike, replace, run
from test_state_exact import LOST, all_exact, behind, schedulers
from test_state_refused import REFUSED

torch = on_demand("torch")
unprotected = on_demand("fabric_train.state.unprotected", needs="torch")
rank_local = on_demand("fabric_train.state.rank_local", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "train-state.md"


def test_what_a_rank_takes_with_it_behind_its_step_is_named_and_another_ranks_is_used():
    source, lost = Rank(behind()), Rank(behind(), 1)
    run(range(LOST), source, lost)
    source.begin()  # the other one is lost before that
    fresh = Rank(behind(), 1)
    assert replace(lost, source, fresh) == {"model/seen", "model.last"}
    assert torch.equal(fresh.script.model.seen, source.script.model.seen)
    assert fresh.script.model.last == source.script.model.last
    mine, its = fresh.script.model[1].running_mean, lost.script.model[1].running_mean
    assert torch.equal(mine, its)


def test_equal_changes_are_not_sent_and_are_exact_in_the_window_too():
    def make():
        script = Script()
        script.model.register_buffer("count", torch.zeros(1))
        script.behind = lambda _step: script.model.count.add_(1)
        return script

    source, lost = Rank(make()), Rank(make(), 1)
    run(range(LOST), source, lost)
    source.begin()
    assert source.start.late_state() is None
    fresh, undisturbed = Rank(make(), 1), Rank(make(), 1)
    assert replace(lost, source, fresh) == frozenset()
    fresh.begin()
    advance(LOST, source, fresh)
    run(range(LOST + 1), undisturbed)
    assert_alike(fresh, undisturbed)


def test_what_is_too_large_to_be_sent_is_named():
    def make():
        script = Script()
        script.model.register_buffer("large", torch.zeros(5 << 20))
        script.behind = lambda _step: script.model.large.add_(script.rank)
        return script

    ranks = [Rank(make(), which) for which in (1, 2)]
    run(range(3), *ranks)
    ranks[0].begin()
    assert ranks[0].start.unkept == {"model/large"}
    content = rank_local.LocalStates.decode(ranks[0].start.late_state())
    assert "model/large" not in content.buffers


def test_what_is_made_in_the_loop_is_found_once():
    gc.collect()  # what other tests have left alive would be found, too, or refused
    script = Script()
    state = replicated.ReplicatedState(script.parts)
    finds = unprotected.Finds(state, rank_local.LocalStates({}))
    finds.now()
    average = torch.nn.Linear(123, 7)  # no other test has one of this size
    assert "a Linear of 868 elements that no protected part contains" in finds.new()
    assert not any("868" in text for text in finds.new())
    assert [step for step in range(100) if finds.is_due(step)] == [16, 32, 64]
    del average


def rows():
    text = PAGE.read_text()
    return dict(re.findall(r"^\| (.+) \| (exact|refused|named) \|$", text, re.MULTILINE))


def test_each_row_of_the_page_has_its_test():
    page = rows()
    tested = {row: "exact" for row, _ in all_exact()} | dict.fromkeys(REFUSED, "refused")
    others = {
        "random numbers that are drawn after `optimizer.step()`": "refused",
        "the same, of a rank that is lost between its `optimizer.step()` and its next attempt":
            "named",
        "the same, of more than 16 MiB": "named",
        "a module, optimizer or scheduler that is made in the loop and is not protected": "named",
    }  # fmt: skip
    assert page == tested | others


def test_each_scheduler_of_torch_is_tried():
    names = {*importlib.import_module("torch.optim.lr_scheduler").__all__, "SWALR"}
    assert names == schedulers().keys()
