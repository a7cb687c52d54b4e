import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.host.local_states import ConfirmStored, Copy, LocalStates, buddies_of
from fabric_train.messages.documents import JobGeneration, Member


def generation(number, hosts, spares=(), formed=None, incarnations=(), moved=None):
    names = [*dict.fromkeys([*hosts, *spares])]
    lives, moved = dict(incarnations), moved or {}
    members = [Member(one, lives.get(one, "i1"), "127.0.0.2:1", "127.0.0.2:2", "") for one in names]
    slots = [f"{host}/p{rank}" for rank, host in enumerate(hosts)]
    slots = [moved.get(rank, slot) for rank, slot in enumerate(slots)]
    formed = number > 1 if formed is None else formed
    return JobGeneration(number, number - 1, slots, list(hosts), [], [], members, "s", formed)


def agent(host="a", hosts="abcd", spares=(), heard="bcde"):
    states = LocalStates(host)
    assert states.started(generation(1, hosts, spares)) == []
    states.heard(heard)
    return states


@pytest.mark.parametrize(
    ("host", "hosts", "spares", "expected"),
    [
        ("a", "abcd", "", ("b", "c")),
        ("d", "abcd", "", ("a", "b")),
        ("c", "abcd", "e", ("d", "a")),
        ("e", "abcd", "e", ()),
        ("a", "aabb", "", ("b",)),
        ("a", "a", "", ()),
        ("a", "a", "e", ()),
        ("z", "ab", "", ()),
    ],
)
def test_buddies_are_the_next_two_hosts_in_slot_order(host, hosts, spares, expected):
    assert buddies_of(host, generation(1, hosts, spares)) == expected


def test_a_state_is_stored_when_both_buddies_have_it():
    states = agent()
    assert states.store("a/p0", 0, 5, b"x") == [
        Copy("b", 1, 0, 5, b"x"), Copy("c", 1, 0, 5, b"x"),
    ]  # fmt: skip
    assert states.acknowledged("b", 1, 0, 5) == []
    assert states.acknowledged("c", 1, 0, 5) == [ConfirmStored("a/p0", 5)]
    assert states.acknowledged("c", 1, 0, 5) == [], "once"


def test_a_buddy_that_is_not_heard_is_not_waited_for_but_one_copy_is_needed():
    states = agent(heard="b")
    states.store("a/p0", 0, 5, b"x")
    assert states.heard("") == [], "nobody has it"
    assert states.acknowledged("b", 1, 0, 5) == [ConfirmStored("a/p0", 5)]
    states.heard("bc")
    states.store("a/p0", 0, 6, b"y")
    assert states.acknowledged("b", 1, 0, 6) == []
    assert states.heard("b") == [ConfirmStored("a/p0", 6)]


def test_a_host_that_hears_no_buddy_goes_on_alone_when_it_is_told_to_and_copies_again_later():
    states = agent(heard="e")
    assert states.hears_no_buddy
    states.store("a/p0", 0, 5, b"x")
    assert states.heard("") == []
    assert states.go_on_alone() == [ConfirmStored("a/p0", 5)]
    assert ConfirmStored("a/p0", 6) in states.store("a/p0", 0, 6, b"y")
    assert states.heard("b") == []
    assert not states.hears_no_buddy
    assert states.copies_for("b") == [Copy("b", 1, 0, 5, b"x"), Copy("b", 1, 0, 6, b"y")]
    assert ConfirmStored("a/p0", 7) not in states.store("a/p0", 0, 7, b"z")
    assert states.go_on_alone() == [], "a buddy is heard"


def test_a_job_on_one_host_stores_at_once():
    states = agent(hosts="aaaa")
    assert states.store("a/p3", 3, 5, b"x") == [ConfirmStored("a/p3", 5)]


def test_acknowledgements_of_another_state_do_not_count():
    states = agent(heard="")
    states.store("a/p0", 0, 5, b"x")
    assert states.acknowledged("z", 1, 0, 5) == [], "no buddy"
    assert states.acknowledged("b", 1, 0, 4) == []
    assert states.acknowledged("b", 2, 0, 5) == []
    assert states.acknowledged("b", 1, 1, 5) == []


def test_what_has_acknowledged_an_earlier_state_of_a_step_does_not_have_the_later_one():
    """A state is sent when gradients are first reduced, and again where it has changed since."""
    states = agent()
    states.store("a/p0", 0, 5, b"early", 1)
    states.acknowledged("b", 1, 0, 5, 1)
    assert states.store("a/p0", 0, 5, b"changed", 2) == [
        Copy("b", 1, 0, 5, b"changed", 2), Copy("c", 1, 0, 5, b"changed", 2),
    ]  # fmt: skip
    assert states.acknowledged("c", 1, 0, 5, 1) == [], "that of the earlier one"
    assert states.acknowledged("b", 1, 0, 5, 2) == []
    assert states.acknowledged("c", 1, 0, 5, 2) == [ConfirmStored("a/p0", 5, 2)]
    assert states.find(0, 5) == (1, b"changed")


def test_a_new_generation_brings_new_buddies_what_they_lack():
    states = agent()
    states.store("a/p0", 0, 4, b"x")
    states.acknowledged("b", 1, 0, 4)
    states.acknowledged("c", 1, 0, 4)
    states.store("a/p0", 0, 5, b"y")
    states.acknowledged("c", 1, 0, 5)
    copies = states.started(generation(2, "aecd", incarnations={"c": "i1"}))
    assert copies == [Copy("e", 1, 0, 4, b"x"), Copy("e", 1, 0, 5, b"y")]
    assert states.acknowledged("e", 1, 0, 5) == [ConfirmStored("a/p0", 5)]


@pytest.mark.parametrize(
    "news",
    [
        generation(2, "ebcd"),
        generation(2, "abcd", moved={0: "a/p9"}),
        generation(2, "abcd", formed=False),
    ],
)
def test_who_loses_its_rank_is_not_kept_waiting(news):
    """By a planned move it lives on, and has to hear of the end of the job."""
    states = agent(heard="")
    states.store("a/p0", 0, 5, b"x")
    assert ConfirmStored("a/p0", 5) in states.started(news)
    assert ConfirmStored("a/p0", 5) not in states.heard("bcd")


def test_who_moves_by_plan_stores_its_state_until_the_next_generation_is_started_here():
    states = agent()
    assert states.processes == {"a/p0"}
    assert states.holds("a/p0", 0)
    assert not states.holds("a/p0", 1)
    assert not states.holds("e/p0", 0)
    news = generation(2, "ebcd")
    states.started(news)
    assert (states.current, states.processes) == (news, frozenset())
    assert not states.holds("a/p0", 0)
    assert states.holds("e/p0", 0)


def test_what_a_former_life_of_a_host_has_acknowledged_is_gone():
    states = agent(hosts="ab", heard="b")
    states.store("a/p0", 0, 5, b"x")
    states.acknowledged("b", 1, 0, 5)
    copies = states.started(generation(2, "ab", incarnations={"b": "i2"}))
    assert copies == [Copy("b", 1, 0, 5, b"x")]


def test_a_buddy_that_connects_anew_gets_what_it_has_not_acknowledged():
    states = agent()
    states.store("a/p0", 0, 5, b"x")
    states.acknowledged("c", 1, 0, 5)
    assert states.copies_for("b") == [Copy("b", 1, 0, 5, b"x")]
    assert states.copies_for("c") == []
    assert states.copies_for("d") == []


def test_three_steps_of_each_rank_are_kept_and_a_newer_generation_wins():
    """A rank may be a step ahead and have sent the state of the next one, when a vote fails."""
    states = agent()
    for step in (3, 4, 5, 6):
        assert states.store_copy(1, 2, step, b"%d" % step)
    assert states.find(2, 3) is None
    assert states.find(2, 4) == (1, b"4")
    assert states.find(2, 6) == (1, b"6")
    assert states.store_copy(2, 2, 6, b"again")
    assert states.find(2, 6) == (2, b"again")
    assert not states.store_copy(1, 2, 7, b"of a host that was replaced")
    assert states.find(2, 7) is None
    assert states.find(2, 5) == (1, b"5")


def test_a_start_from_the_beginning_drops_older_states_but_not_newer_ones():
    states = agent()
    states.store_copy(1, 1, 0, b"old")
    states.store_copy(3, 2, 0, b"of a host that has started before this one")
    states.started(generation(3, "abcd", formed=False))
    assert states.find(1, 0) is None
    assert states.find(2, 0) is not None


@given(st.data())
def test_a_rank_hears_stored_only_when_another_host_has_its_state(data):
    states = agent()
    has, pending, step, number = {}, False, 0, 1
    for _ in range(data.draw(st.integers(1, 40))):
        event = data.draw(st.sampled_from(["store", "acknowledge", "hear", "connect", "start"]))
        host = data.draw(st.sampled_from("bcde"))
        effects = []
        if event == "store" and not pending:
            step += 1
            effects, pending = states.store("a/p0", 0, step, b"x"), True
        elif event == "acknowledge" and host in has.get(step, ()):
            effects = states.acknowledged(host, has[step][host], 0, step)
        elif event == "hear":
            effects = states.heard(data.draw(st.sets(st.sampled_from("bcde"))))
        elif event == "connect":
            effects = states.copies_for(host)
        elif event == "start":
            number += 1
            others = data.draw(st.permutations("bcde"))[:3]
            effects = states.started(generation(number, ["a", *others]))
        for effect in effects:
            if isinstance(effect, Copy):
                has.setdefault(effect.step, {})[effect.host] = effect.generation
            else:
                assert effect == ConfirmStored("a/p0", step)
                assert pending
                assert set(has[step]), "it was sent to somebody"
                pending = False
