"""Which answers show that a generation is still the newest one of its job."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_host_core import generation

from fabric_train.host.newest import NewestCheck, Promise, doubt, promise_of
from fabric_train.host.peer_messages import AskAccepted, NewestAccepted

FIRST = generation(3, slots=("a/i1/p0", "b/i1/p0", "c/i1/p0"))  # electorate: a, b, c
MINE = promise_of(FIRST)


def answers(**promises):
    return dict(promises)


def test_a_majority_that_has_accepted_nothing_later_is_enough():
    assert doubt(FIRST, FIRST, answers(a=MINE, b=MINE)) == ""
    assert doubt(FIRST, FIRST, answers(a=MINE, b=MINE, c=Promise(2, "x"))) == ""


@pytest.mark.parametrize(
    ("running", "accepted", "said", "text"),
    [
        (None, None, {}, "no generation runs here"),
        (FIRST, FIRST, answers(a=MINE), "1 of the 3 agents of generation 3 answer, and 2"),
        (FIRST, FIRST, answers(a=MINE, b=Promise(2, "x")), "cut off or replaced"),
        (FIRST, FIRST, answers(a=MINE, b=Promise(3, "another")), "cut off or replaced"),
        (FIRST, FIRST, answers(a=MINE, b=MINE, c=Promise(4, "x")), "generation 4 is under way"),
        (FIRST, generation(4), answers(a=MINE, b=MINE), "generation 4 is under way"),
    ],
)
def test_anything_else_is_doubted_with_its_reason(running, accepted, said, text):
    assert text in doubt(running, accepted, said)


@given(st.sets(st.sampled_from("abcde")), st.sets(st.sampled_from("abcde"), min_size=3))
def test_a_later_generation_that_a_majority_has_promised_is_never_overlooked(answering, promised):
    """Whoever answers: those that promised generation 4 say so."""
    now = replace(FIRST, electorate=[f"{host}/i1" for host in "abcde"])
    said = {host: Promise(4, "x") if host in promised else promise_of(now) for host in answering}
    assert doubt(now, now, said)


class Peers:
    """Other agents: each answers what it has promised, once it is heard again."""

    def __init__(self, promises):
        self.promises = promises
        self.asked = []
        self.check = NewestCheck("a", self)

    @property
    def hears(self):
        return sorted(self.promises)

    def send(self, host, message):
        if host not in self.promises:
            return False
        assert isinstance(message, AskAccepted)
        self.asked.append(host)
        promise = self.promises[host]
        answer = NewestAccepted(message.question, promise.generation, promise.proposal)
        asyncio.get_running_loop().call_soon(self.check.answered, host, answer)
        return True


async def test_the_agents_of_the_electorate_are_asked_anew_each_time():
    peers = Peers({"b": MINE})
    for count in (1, 2):
        assert await peers.check.ask(lambda: (FIRST, FIRST)) == (3, "")
        assert len(peers.asked) == count


async def test_an_agent_that_nobody_answers_says_no():
    peers = Peers({})
    number, problem = await peers.check.ask(lambda: (FIRST, FIRST), limit_s=0.2)
    assert number == 3
    assert "1 of the 3 agents" in problem


async def test_an_answer_to_an_earlier_question_does_not_count():
    peers = Peers({})
    peers.check.answered("b", NewestAccepted(1, 3, MINE.proposal))
    asyncio.get_running_loop().call_later(
        0.05, peers.check.answered, "b", NewestAccepted(99, 3, MINE.proposal)
    )
    _, problem = await peers.check.ask(lambda: (FIRST, FIRST), limit_s=0.2)
    assert "1 of the 3 agents" in problem


async def test_a_takeover_under_way_is_waited_for():
    later = generation(4, slots=FIRST.slots)
    peers, turns = Peers({"b": MINE}), []

    def newest():
        turns.append(1)
        if len(turns) < 5:
            return FIRST, later
        peers.promises["b"] = promise_of(later)
        return later, later

    assert await peers.check.ask(newest) == (4, "")
