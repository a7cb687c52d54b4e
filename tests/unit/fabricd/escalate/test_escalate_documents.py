"""What documents of jobs cost in memory: each user has a share, and long lines are few at once."""

import asyncio
import contextlib
import gc
import json
import socket
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.control.pace import Pace
from fabricd.escalate import line_reader
from fabricd.escalate.job_lines import (
    MAX_LINE,
    MAX_VALUES,
    Document,
    LineError,
    _marks,
    memory_of,
    parse_line,
)
from fabricd.escalate.job_registry import (
    MOST_BYTES,
    MOST_BYTES_OF_USER,
    SURE_BYTES,
    JobRegistry,
    RefusedError,
)
from fabricd.escalate.line_reader import LONG_AT_ONCE, LineReader, LineTurns

ANN, MALLORY = 1001, 1002
HEAD, TAIL = b'{"kind": "document", "document": {"x": ', b"}}"


def filled(piece, close=b"", begin=b""):
    """A line as long as one may be, of many of one piece."""
    room = MAX_LINE - len(HEAD + TAIL + begin + close) - 8
    body = piece * min(room // len(piece), MAX_VALUES - 20 if b"," in piece else room)
    return HEAD + begin + body.rstrip(b",") + close + TAIL + b"\n"


LINES = {
    "text": filled(b"y", b'"', b'"'),
    "wide text": filled(b"y", '😀"'.encode(), b'"'),
    "wide text, escaped": filled(b"y", b'\\ud83d\\ude00"', b'"'),
    "short texts": filled(b'"ab",', b"]", b"["),
    "numbers": filled(b"999,", b"]", b"["),
    "fractions": filled(b"0.5,", b"]", b"["),
    "long texts": filled(b'"abcdefghi",', b"]", b"["),
    "escapes": filled(b"\\\\", b'"', b'"'),
    "quotes": filled(b"\\\\n", b'"', b'"'),
    "keys": HEAD + json.dumps({f"k{n}": 0 for n in range(19_000)}).encode()[:-1] + b"}}}\n",
    "objects": HEAD + json.dumps([{"a": 1}] * 9_000).encode() + b"}}\n",
    "lists": HEAD + json.dumps([[]] * 9_900).encode() + b"}}\n",
}


@pytest.mark.parametrize("name", LINES)
def test_what_a_document_takes_is_not_more_than_is_counted(name):
    line = LINES[name]
    assert len(line) <= MAX_LINE
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        document = parse_line(line)
        takes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert isinstance(document, Document)
    assert document.memory == memory_of(line)
    assert takes <= 1.2 * document.memory
    assert document.memory <= MOST_BYTES_OF_USER, "a user has room for any one line"


@pytest.mark.parametrize("name", LINES)
def test_reading_a_line_takes_little_more_memory_than_it_keeps(name):
    """One expression for its texts took 120 bytes a character: 50 MB, and 0.3 s of the loop."""
    tracemalloc.start()
    try:
        document = parse_line(LINES[name])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most <= document.memory + (10 << 20)


JSON = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('"\\\\[]{}:,ab\\né')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('"\\\\{},a')), inner),
)


def marks_of(value):
    """Of JSON as ``json.dumps`` writes it without spaces."""
    if isinstance(value, dict):
        keys = sum(2 for _ in value)
        return 2 + keys - bool(value) + sum(map(marks_of, value.values()))
    if isinstance(value, list):
        return 2 + len(value) - bool(value) + sum(map(marks_of, value))
    return 0


@given(JSON, st.booleans())
def test_what_is_in_texts_is_not_counted(value, ascii_only):
    line = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert len(_marks(line)) == marks_of(value)


@pytest.mark.parametrize(
    "many",
    [
        b"[" + b"1," * 50_000 + b"1]",
        b"[" + b'"",' * 50_000 + b"1]",
        b'"' + b'\\"' * 90_000 + b'"',
    ],
)
def test_a_line_of_many_values_is_refused_before_it_costs_anything(many):
    with pytest.raises(LineError, match=f"more than {MAX_VALUES} values and texts"):
        parse_line(HEAD + many + TAIL)


def test_a_users_documents_take_so_much_and_others_have_room_all_the_same():
    registry = JobRegistry()
    piece = MOST_BYTES_OF_USER // 4
    runs = [registry.register(f"j{n}", "i", MALLORY, 1, n) for n in range(5)]
    assert all(registry.keep(run, {"n": 1}, piece) for run in runs[:4])
    assert not registry.keep(runs[0], {"n": 1}, piece), "the same as before"
    assert registry.keep(runs[0], {"n": 2}, piece), "another one in its place"
    with pytest.raises(RefusedError, match=r"jobs of uid 1002 take 10240 KiB.*allowed: 8192 and"):
        registry.keep(runs[4], {"n": 1}, piece)
    assert runs[4].document is None
    hers = registry.register("gpt", "i", ANN, 2, 9)
    assert registry.keep(hers, {"n": 1}, MOST_BYTES_OF_USER)
    registry.ended(runs[1])
    assert runs[1].state()["document"] == {}, "nobody reads what a run said that is gone"
    assert registry.keep(runs[4], {"n": 1}, piece)


def test_many_users_do_not_keep_one_out_who_needs_little_and_root_is_kept_out_by_nobody():
    registry = JobRegistry()
    for uid in range(2000, 2000 + MOST_BYTES // MOST_BYTES_OF_USER):
        run = registry.register(f"j{uid}", "i", uid, 1, uid)
        assert registry.keep(run, {}, MOST_BYTES_OF_USER)
    hers = registry.register("gpt", "i", ANN, 2, 9)
    assert registry.keep(hers, {"n": 1}, SURE_BYTES)
    with pytest.raises(RefusedError, match="of all users"):
        registry.keep(hers, {"n": 2}, SURE_BYTES + 1)
    root = registry.register("root", "i", 0, 3, 10)
    assert registry.keep(root, {}, MOST_BYTES_OF_USER)
    with pytest.raises(RefusedError):
        registry.keep(root, {"n": 1}, MOST_BYTES_OF_USER + 1)


# -- reading


class Connections:
    """Readers of one user, and the other ends of their sockets."""

    def __init__(self):
        self.turns, self.pace = LineTurns(), Pace(lambda: 0.0, burst=1e12)
        self._open = contextlib.ExitStack()

    def new(self, user=ANN):
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        for one in (ours, theirs):
            one.setblocking(False)
            self._open.enter_context(one)
        return LineReader(ours, user, self.turns, self.pace), theirs

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._open.close()


@pytest.fixture
def connections():
    with Connections() as made:
        yield made


async def test_lines_come_one_after_the_other_however_they_are_cut(connections):
    reader, theirs = connections.new()
    lines = [b'{"kind": "leave"}\n', LINES["text"], b'{"kind": "fenced", "id": "f"}\n'] * 2
    data = b"".join(lines)

    async def send():
        loop = asyncio.get_running_loop()
        for first in range(0, len(data), 50_000):
            await loop.sock_sendall(theirs, data[first : first + 50_000])
        theirs.close()

    sending = asyncio.create_task(send())
    assert [await reader.next() for _ in lines] == [parse_line(one) for one in lines]
    with pytest.raises(EOFError):
        await reader.next()
    await sending


@pytest.mark.parametrize("size", [MAX_LINE, MAX_LINE + 100_000])
async def test_a_line_that_is_too_long_is_refused(connections, size):
    reader, theirs = connections.new()
    sending = asyncio.create_task(
        asyncio.get_running_loop().sock_sendall(theirs, b"x" * size + b"\n")
    )
    with pytest.raises(LineError, match=f"line over {MAX_LINE} bytes"):
        await reader.next()
    sending.cancel()
    await asyncio.wait({sending})


async def test_few_long_lines_of_a_user_are_held_and_others_have_their_own(connections):
    """One who sends half of a long line on each of many connections fills four of them."""
    loop = asyncio.get_running_loop()
    half = [connections.new(MALLORY) for _ in range(12)]
    for _, theirs in half:
        theirs.send(b"x" * 100_000)
    reading = [loop.create_task(reader.next()) for reader, _ in half]
    short, theirs = connections.new(MALLORY)
    theirs.send(b'{"kind": "leave"}\n')
    await short.next()
    hers, theirs = connections.new()
    sending = loop.create_task(loop.sock_sendall(theirs, LINES["text"]))
    assert isinstance(await hers.next(), Document)
    await sending
    held = sorted(len(reader._held) for reader, _ in half)
    assert sum(one > line_reader.CHUNK for one in held) == LONG_AT_ONCE
    assert held[-LONG_AT_ONCE - 1] <= 2 * line_reader.SHORT
    for _, theirs in half[:6]:
        theirs.close()  # Who has a turn gives it on.
    for task in reading[:6]:
        with pytest.raises(EOFError):
            await task
    await asyncio.sleep(0.05)
    held = [len(reader._held) for reader, _ in half[6:]]
    assert sum(one > line_reader.CHUNK for one in held) == LONG_AT_ONCE
    for task in reading[6:]:
        task.cancel()
    await asyncio.wait(reading)


async def test_a_long_line_that_does_not_end_gives_its_turn_on(connections, monkeypatch):
    monkeypatch.setattr(line_reader, "LONG_S", 0.05)
    reader, theirs = connections.new()
    theirs.send(b"x" * 100_000)
    with pytest.raises(LineError, match=r"has not come whole within 0\.05 s"):
        await reader.next()
    assert not connections.turns._held
