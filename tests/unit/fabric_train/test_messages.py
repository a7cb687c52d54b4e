import contextlib
import dataclasses
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.messages import process as m

EXAMPLES = [
    m.Hello("p0", "token", 1, {"torch": "2.13"}),
    m.Protected("abc", {"bytes": "12"}),
    m.LocalState(1, 2, b"\0\1", 3),
    m.LocalStateRequest(1, 2),
    m.Suspect(3, "closed"),
    m.Acknowledged(3),
    m.Recovered(3, 7, "copy", {"state": 1.5}),
    m.Committed(3, 8),
    m.Failed("no replica"),
    m.Finished(9),
    m.Welcome("job", 4, spare=True),
    m.Assignment(3, None, 4, "127.0.0.1:1"),
    m.Stored(2, 3),
    m.LocalStateAnswer(1, 2, known=True, body=b"x"),
    m.Refused("why"),
    m.Release(),
]


def test_all_kinds_come_back_from_any_cut():
    stream = b"".join(map(m.encode, EXAMPLES))
    for size in (1, 7, len(stream)):
        decoder = m.Decoder()
        parts = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert [message for part in parts for message in decoder.feed(part)] == EXAMPLES


def frame(header, body=b""):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<II", len(data), len(body)) + data + body


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (frame(b"{"), "no JSON"),
        (frame(b"[" * 100_000), "no JSON"),
        (frame([]), "no object"),
        (frame({"kind": "hullo"}), "unknown kind 'hullo'"),
        (frame({"kind": []}), "unknown kind"),
        (frame({"kind": "finished"}), "fields: step"),
        (frame({"kind": "finished", "step": 1, "more": 2}), "fields: more"),
        (frame({"kind": "finished", "step": True}), "finished.step"),
        (frame({"kind": "finished", "step": 1 << 80}), "finished.step"),
        (frame({"kind": "finished", "step": 1}, b"x"), "has no body"),
        (frame({"kind": "hello", "process": "p", "token": "t", "pid": 1, "version": 1,
                "software": {"torch": 2}}), "hello.software"),
        (struct.pack("<II", m.MAX_HEADER + 1, 0), "over the limit"),
        (struct.pack("<II", 2, m.MAX_BODY + 1), "over the limit"),
    ],
)  # fmt: skip
def test_what_is_no_message_says_what_is_wrong(data, text):
    with pytest.raises(m.MessageError, match=text):
        list(m.Decoder().feed(data))


def test_what_is_too_long_is_not_sent():
    with pytest.raises(m.MessageError, match="at most"):
        m.encode(m.Failed("x" * m.MAX_HEADER))


@given(st.sampled_from(EXAMPLES), st.data())
def test_changed_bytes_give_a_message_or_an_error(example, data):
    raw = bytearray(m.encode(example))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        for message in m.Decoder().feed(bytes(raw)):
            assert dataclasses.is_dataclass(message)
    except m.MessageError:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_give_messages_or_an_error(raw):
    with contextlib.suppress(m.MessageError):
        list(m.Decoder().feed(raw))
