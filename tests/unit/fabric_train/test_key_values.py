"""The store in which the ranks of a generation meet, and the way of a question to its agent."""

import asyncio

import pytest

from fabric_train.agent import key_values
from fabric_train.agent.key_router import KeyRouter
from fabric_train.agent.key_values import Asker, KeyValues
from fabric_train.host import peer_messages
from fabric_train.messages import process
from fabric_train.messages.keys import KeyAnswer, KeyRequest

RANK = Asker("h1/p0", is_process=True)
HOST = Asker("h2", is_process=False)


def request(call, *keys, question=1, host="h1", **more):
    return KeyRequest(question, host, call, list(keys), **more)


def said(answers):
    return {(who.name, one.question): (one.problem, one.count, one.body) for who, one in answers}


def test_who_asks_before_a_key_is_there_is_answered_when_it_is():
    values = KeyValues()
    assert values.ask(RANK, request("get", "g1/a", timeout_s=5), 0) == []
    assert values.ask(HOST, request("wait", "g1/a", "g1/b", question=7, timeout_s=5), 0) == []
    first = said(values.ask(HOST, request("set", "g1/a", question=8, body=b"x"), 1))
    assert first == {("h2", 8): ("", 0, b""), ("h1/p0", 1): ("", 0, b"x")}
    second = said(values.ask(RANK, request("set", "g1/b", question=2), 2))
    assert second == {("h1/p0", 2): ("", 0, b""), ("h2", 7): ("", 0, b"")}
    assert values.expire(100) == []


def test_who_has_waited_for_long_enough_is_told_what_is_missing():
    values = KeyValues()
    values.ask(RANK, request("set", "g1/a"), 0)
    values.ask(RANK, request("wait", "g1/a", "g1/b", question=2, timeout_s=5), 10)
    assert values.expire(14.9) == []
    [(who, answer)] = values.expire(15.0)
    assert who == RANK
    assert answer.problem == "nobody has set g1/b within 5 s"
    assert values.expire(16) == []


def test_counting_and_looking():
    values = KeyValues()
    assert said(values.ask(RANK, request("add", "n", amount=3), 0)) == {("h1/p0", 1): ("", 3, b"")}
    assert said(values.ask(RANK, request("add", "n", amount=-1), 0)) == {("h1/p0", 1): ("", 2, b"")}
    assert said(values.ask(RANK, request("check", "n"), 0)) == {("h1/p0", 1): ("", 1, b"")}
    assert said(values.ask(RANK, request("check", "n", "m"), 0)) == {("h1/p0", 1): ("", 0, b"")}
    values.ask(RANK, request("set", "n", body=b"three"), 0)
    [(_, answer)] = values.ask(RANK, request("add", "n", amount=1), 0)
    assert answer.problem == "n is no number"


@pytest.mark.parametrize(
    "wrong",
    [
        request("eval", "a"),
        request("get"),
        request("set", "a", "b"),
        request("get", "a", timeout_s=float("inf")),
        request("get", "a", timeout_s=float("nan")),
        request("wait", "a", timeout_s=-1.0),
    ],
)
def test_what_no_rank_asks_is_refused(wrong):
    [(_, answer)] = KeyValues().ask(RANK, wrong, 0)
    assert answer.problem


def test_a_generation_that_is_over_is_forgotten_and_nobody_waits_for_it():
    values = KeyValues()
    values.ask(RANK, request("set", "g2.aa/x", body=b"1"), 0)
    values.ask(RANK, request("set", "g10.bb/x", body=b"1"), 0)
    values.ask(HOST, request("get", "g3.aa/y", question=5, timeout_s=60), 0)
    values.ask(HOST, request("get", "g10.bb/y", question=6, timeout_s=60), 0)
    assert said(values.forget_before(10)) == {("h2", 5): ("generation 10 has begun", 0, b"")}
    assert said(values.ask(RANK, request("check", "g2.aa/x"), 0))["h1/p0", 1][1] == 0
    assert said(values.ask(RANK, request("check", "g10.bb/x"), 0))["h1/p0", 1][1] == 1


def test_it_holds_so_much_and_says_so_and_takes_more_when_a_generation_is_over(monkeypatch):
    monkeypatch.setattr(key_values, "MAX_BYTES", 100)
    values = KeyValues()
    assert not values.ask(RANK, request("set", "g1/a", body=bytes(90)), 0)[0][1].problem
    assert "full" in values.ask(RANK, request("set", "g1/b", body=b"123"), 0)[0][1].problem
    assert not values.ask(RANK, request("set", "g1/a", body=bytes(80)), 0)[0][1].problem
    assert not values.ask(RANK, request("set", "g1/b", body=b"123"), 0)[0][1].problem
    values.forget_before(2)
    assert not values.ask(RANK, request("set", "g2/b", body=bytes(96)), 0)[0][1].problem


class Wire:
    """Agents that send to each other over codecs as the real ones; a cut wire loses all."""

    def __init__(self):
        self.routers = {}
        self.answers = []
        self.up = True
        self.lost = False
        self.news = asyncio.Event()

    def agent(self, host):
        class End:
            def send(_, to, message):  # noqa: N805
                if not self.up:
                    return False
                if not self.lost:
                    self.deliver(host, to, message)
                return True

        def answer(name, one):
            (got,) = process.Decoder().feed(process.encode(one))
            self.answers.append((name, got))
            self.news.set()

        self.routers[host] = KeyRouter(host, End(), answer)
        return self.routers[host]

    def deliver(self, host, to, message):
        decoder = peer_messages.decoder()
        peer_messages.trust(decoder)
        (got,) = decoder.feed(peer_messages.CODEC.encode(message))
        if isinstance(got, KeyRequest):
            self.routers[to].host_asks(host, got)
        else:
            self.routers[to].host_answers(host, got)


def test_a_question_goes_to_the_agent_that_keeps_the_store_and_its_answer_back():
    async def play():
        wire = Wire()
        here, there = wire.agent("h1"), wire.agent("h2")
        here.process_asks("h1/p0", request("get", "g1/a", host="h2", question=4, timeout_s=9))
        here.process_asks("h1/p1", request("get", "g1/a", host="h1", question=4, timeout_s=9))
        there.process_asks("h2/p0", request("set", "g1/a", host="h2", question=9, body=b"x"))
        assert wire.answers == [("h2/p0", KeyAnswer(9)), ("h1/p0", KeyAnswer(4, body=b"x"))]

    asyncio.run(play())


def test_what_is_lost_with_a_connection_is_asked_again_but_for_sums():
    async def play():
        wire = Wire()
        here, there = wire.agent("h1"), wire.agent("h2")
        wire.up = False  # not yet connected
        here.process_asks("h1/p0", request("get", "g1/a", host="h2", question=1, timeout_s=9))
        wire.up = wire.lost = True  # a connection that dies with what was sent
        here.connected("h2")
        here.process_asks("h1/p0", request("add", "g1/n", host="h2", question=2, amount=1))
        here.process_asks("h1/p0", request("set", "g1/b", host="h2", question=3, body=b"y"))
        assert wire.answers == []
        wire.lost = False
        here.connected("h2")
        there.connected("h1")
        there.process_asks("h2/p0", request("set", "g1/a", host="h2", question=1, body=b"x"))
        answers = {(name, one.question): one for name, one in wire.answers}
        assert "lost" in answers["h1/p0", 2].problem
        assert not answers["h1/p0", 3].problem
        # The agent there forgets what was asked over the connection before.
        assert ("h1/p0", 1) not in answers
        here.connected("h2")
        assert wire.answers[-1] == ("h1/p0", KeyAnswer(1, body=b"x"))

    asyncio.run(play())


def test_nobody_answers_for_another_host_and_nothing_comes_for_who_is_gone():
    async def play():
        wire = Wire()
        here = wire.agent("h1")
        wire.agent("h2")
        wire.agent("h3")
        here.process_asks("h1/p0", request("get", "g1/a", host="h2", timeout_s=9))
        wire.deliver("h3", "h1", KeyAnswer(1, body=b"forged"))
        assert wire.answers == []
        here.left("h1/p0")
        wire.deliver("h2", "h1", KeyAnswer(1, body=b"late"))
        assert wire.answers == []

    asyncio.run(play())


def test_an_agent_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr("fabric_train.agent.key_router._SLACK_S", 0.01)

    async def play():
        wire = Wire()
        here = wire.agent("h1")
        wire.up = False
        here.process_asks("h1/p0", request("get", "g1/a", host="h2", timeout_s=0.01))
        await wire.news.wait()
        wire.news.clear()
        assert wire.answers == [("h1/p0", KeyAnswer(1, "the agent on h2 has not answered"))]
        here.process_asks("h1/p0", request("get", "g1/a", host="h1", timeout_s=0.01))
        await wire.news.wait()
        assert "nobody has set" in wire.answers[1][1].problem

    asyncio.run(play())
