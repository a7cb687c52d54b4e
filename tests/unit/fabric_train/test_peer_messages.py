import contextlib
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.host import peer_messages as m
from fabric_train.messages import frames

EXAMPLES = [
    m.Challenge("nonce"),
    m.PeerHello("gpt", "a", "i1", "nonce", "proof"),
    m.PeerWelcome("proof"),
    m.PeerRefused("why"),
    m.Heartbeat(),
    m.StoreLocal(1, 2, 3, b"\0\1", 4),
    m.StoredLocal(1, 2, 3, 4),
    m.FindLocal(9, 2, 3),
    m.FoundLocal(9, 1, b"x"),
]


def trusting():
    decoder = m.decoder()
    m.trust(decoder)
    return decoder


def test_all_kinds_come_back_from_any_cut():
    stream = b"".join(map(m.CODEC.encode, EXAMPLES))
    for size in (1, 7, len(stream)):
        decoder = trusting()
        parts = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert [message for part in parts for message in decoder.feed(part)] == EXAMPLES


def test_who_has_not_proved_anything_may_not_send_much():
    with pytest.raises(frames.MessageError, match="over the limit"):
        list(m.decoder().feed(m.CODEC.encode(m.StoreLocal(1, 2, 3, b"x"))))
    with pytest.raises(frames.MessageError, match="over the limit"):
        list(m.decoder().feed(m.CODEC.encode(m.PeerRefused("x" * m.MAX_GREETING))))


def test_both_sides_prove_that_they_have_the_token_and_never_send_it():
    challenge = m.new_challenge()
    said = m.hello(challenge, "token", "gpt", "a", "i1")
    answer = m.welcome(challenge, said, "token")
    assert answer is not None
    assert m.is_proven(challenge, said, answer, "token")
    sent = b"".join(map(m.CODEC.encode, (challenge, said, answer)))
    assert b"token" not in sent


@pytest.mark.parametrize("field", ["job", "host", "incarnation", "nonce", "proof"])
def test_a_greeting_that_was_changed_or_replayed_proves_nothing(field):
    challenge = m.new_challenge()
    said = m.hello(challenge, "token", "gpt", "a", "i1")
    assert m.welcome(challenge, dataclasses.replace(said, **{field: "other"}), "token") is None
    assert m.welcome(challenge, said, "another token") is None
    assert m.welcome(m.new_challenge(), said, "token") is None
    answer = m.welcome(challenge, said, "token")
    assert not m.is_proven(challenge, said, answer, "another token")
    assert not m.is_proven(challenge, dataclasses.replace(said, nonce="x"), answer, "token")


@given(st.sampled_from(EXAMPLES), st.data())
def test_changed_bytes_give_a_message_or_an_error(example, data):
    raw = bytearray(m.CODEC.encode(example))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(frames.MessageError):
        for message in trusting().feed(bytes(raw)):
            assert dataclasses.is_dataclass(message)


@given(st.binary(max_size=200))
def test_any_bytes_give_messages_or_an_error(raw):
    with contextlib.suppress(frames.MessageError):
        list(m.decoder().feed(raw))
