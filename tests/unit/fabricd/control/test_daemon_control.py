"""The control socket: garbage is counted and refused, slow readers are dropped."""

import asyncio
import contextlib
import json
import os
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.control import server as control_server
from fabricd.control.access import Access, Caller, caller_of
from fabricd.control.places import CONNECTIONS, Places, Standing
from fabricd.control.server import (
    MAX_LINE,
    ControlServer,
    ListInParts,
    RequestError,
    encode,
    encode_in_turns,
    parse_request,
)
from fabricd.control.work_pace import WorkPace
from fabricd.process.cpu_meter import charged


async def echo(request, caller):
    if request.get("fail"):
        raise RequestError("as asked")
    if request.get("bug"):
        raise ZeroDivisionError
    return {"got": request, "uid": caller.uid}


@contextlib.asynccontextmanager
async def serving(tmp_path):
    access = Access(read=os.getegid())
    server = ControlServer(tmp_path / "ctl.sock", changing={"set"}, access=access)
    await server.start({"echo": echo, "set": echo})
    try:
        yield server
    finally:
        await server.stop()


async def connect(tmp_path):
    return await asyncio.open_unix_connection(str(tmp_path / "ctl.sock"), limit=2**20)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is another task's state
            await asyncio.sleep(0.01)


async def talk(tmp_path, raw: bytes):
    """Send bytes; returns (answers, whether the server closed)."""
    reader, writer = await connect(tmp_path)
    writer.write(raw)
    with contextlib.suppress(OSError):
        await writer.drain()
        writer.write_eof()
    with contextlib.suppress(ConnectionResetError):
        data = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return [json.loads(line) for line in data.splitlines()]


async def test_requests_are_answered_in_order_on_one_connection(tmp_path):
    async with serving(tmp_path) as server:
        answers = await talk(tmp_path, b'{"op":"echo","n":1}\n{"op":"echo","n":2}\n')
        assert [a["data"]["got"]["n"] for a in answers] == [1, 2]
        assert server.refused == 0


@pytest.mark.parametrize("rows", [0, 1, 200, 201, 2000])
async def test_a_long_answer_is_encoded_in_turns(rows):
    document = {"ok": True, "data": [{"at": at, "text": "é"} for at in range(rows)]}
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert await encode_in_turns(document) == encode(document)
    counting.cancel()
    assert turns >= (rows // 200 if rows > 200 else 0)


async def test_errors_keep_the_connection(tmp_path):
    async with serving(tmp_path) as server:
        answers = await talk(
            tmp_path, b'{"op":"echo","fail":1}\n{"op":"echo","bug":1}\n{"op":"echo"}\n'
        )
        assert [a["ok"] for a in answers] == [False, False, True]
        assert answers[0]["error"] == "as asked"
        assert answers[1]["error"] == "internal error: ZeroDivisionError"
        assert server.refused == 0


@pytest.mark.parametrize(
    "garbage",
    [b"\n", b"hello\n", b"[]\n", b"{}\n", b'{"op":1}\n', b"\xff\xfe\n", b"null\n", b"[" * 5000
     + b"\n", b'{"op":"format_disk"}\n', b"x" * (MAX_LINE + 1) + b"\n", b"y" * (3 * MAX_LINE)],
)  # fmt: skip
async def test_garbage_is_counted_answered_once_and_the_connection_closed(tmp_path, garbage):
    async with serving(tmp_path) as server:
        answers = await talk(tmp_path, garbage + b'{"op":"echo"}\n')
        assert len(answers) <= 1
        assert all(a["ok"] is False for a in answers)
        assert server.refused == 1
        assert (await talk(tmp_path, b'{"op":"echo"}\n'))[0]["ok"], "others are served"


async def test_longest_allowed_line(tmp_path):
    async with serving(tmp_path) as server:
        head, tail = b'{"op":"echo","x":"', b'"}'
        line = head + b"a" * (MAX_LINE - len(head) - len(tail)) + tail
        answers = await talk(tmp_path, line + b"\n")
        assert answers[0]["ok"]
        assert server.refused == 0


async def test_half_a_line_is_garbage_too(tmp_path):
    async with serving(tmp_path) as server:
        assert await talk(tmp_path, b'{"op":') == []
        assert server.refused == 1


@given(st.binary(max_size=200))
def test_any_line_is_a_request_or_refused(line):
    with contextlib.suppress(RequestError):
        assert isinstance(parse_request(line)["op"], str)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda x:
       st.lists(x) | st.dictionaries(st.text(), x)))  # fmt: skip
def test_any_json_is_a_request_or_refused(value):
    line = json.dumps(value).encode()
    if isinstance(value, dict) and isinstance(value.get("op"), str):
        assert parse_request(line)
    else:
        with pytest.raises(RequestError):
            parse_request(line)


async def test_followers_get_each_event(tmp_path):
    async with serving(tmp_path) as server:
        reader, writer = await connect(tmp_path)
        writer.write(b'{"op":"events"}\n')
        assert json.loads(await reader.readline())["ok"]
        for number in range(3):
            server.broadcast({"n": number})
        assert [json.loads(await reader.readline())["n"] for _ in range(3)] == [0, 1, 2]
        writer.close()


async def test_follower_that_does_not_read_is_dropped_and_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(control_server, "DRAIN_S", 0.2)
    async with serving(tmp_path) as server:
        lazy = socket.socket(socket.AF_UNIX)
        lazy.connect(str(tmp_path / "ctl.sock"))
        lazy.sendall(b'{"op":"events"}\n')
        reader, writer = await connect(tmp_path)
        writer.write(b'{"op":"events"}\n')
        await reader.readline()
        await until(lambda: len(server._followers) == 2)
        seen = 0
        deadline = asyncio.get_running_loop().time() + 60
        while len(server._followers) > 1:
            assert asyncio.get_running_loop().time() < deadline
            server.broadcast({"pad": "x" * 4000})
            await asyncio.wait_for(reader.readline(), 60)
            seen += 1
        assert seen > 10
        server.broadcast({"still": "here"})
        assert json.loads(await reader.readline()) == {"still": "here"}
        lazy.close()
        writer.close()


async def test_readers_leave_places_to_admins_and_root(tmp_path, monkeypatch):
    """Of the group that may ask, nobody has more than 16 connections, and all have 48."""
    group, callers = os.getegid(), []
    monkeypatch.setattr(control_server, "caller_of", lambda _: callers[-1])

    async def held_by(uid, groups, most):
        callers.append(Caller(1, uid, frozenset(groups)))
        before, held = len(server._clients), []
        while len(held) < most:
            held.append(await connect(tmp_path))
            await until(lambda: len(server._clients) == before + len(held))
        return held

    async with serving(tmp_path) as server:
        server.access = Access(read=group, admin=group + 1)
        held = [*await held_by(1001, {group}, 16)]
        [answer] = await talk(tmp_path, b'{"op":"echo"}\n')
        assert answer["error"].startswith("busy: uid 1001 has 16, the most for one user")
        assert server.refused == 1
        held += await held_by(1002, {group}, 16) + await held_by(1003, {group}, 16)
        callers.append(Caller(1, 1004, frozenset({group})))
        assert "all 48 places" in (await talk(tmp_path, b'{"op":"echo"}\n'))[0]["error"]
        held += await held_by(1005, {group + 1}, 8)
        assert "all 56 places" in (await talk(tmp_path, b'{"op":"echo"}\n'))[0]["error"]
        callers.append(Caller(1, 0))
        assert (await talk(tmp_path, b'{"op":"echo"}\n'))[0]["ok"]
        assert server.refused == 3
        held.pop()[1].close()
        await until(lambda: len(server._clients) == 55)
        callers.append(Caller(1, 1005, frozenset({group + 1})))
        assert (await talk(tmp_path, b'{"op":"echo"}\n'))[0]["ok"]
        for _, writer in held:
            writer.close()


async def test_a_connection_that_asks_for_nothing_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(control_server, "IDLE_S", 0.05)
    async with serving(tmp_path) as server:
        reader, writer = await connect(tmp_path)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        await until(lambda: server._places.taken == 0)
        writer.close()


async def pieces(rows, fail):
    for first in range(0, rows, 10):
        yield json.dumps(list(range(first, min(first + 10, rows)))).encode()[1:-1]
    if fail:
        raise RequestError("the file is gone")


@contextlib.asynccontextmanager
async def serving_large(tmp_path, handlers):
    """Each of them counts as large."""
    server = ControlServer(tmp_path / "ctl.sock", large=frozenset(handlers))
    await server.start(handlers)
    try:
        yield server
    finally:
        await server.stop()


@pytest.mark.parametrize("rows", [0, 1, 10, 25])
@pytest.mark.parametrize("fail", [False, True])
async def test_a_list_in_parts_is_one_answer(tmp_path, rows, fail):
    async def list_in_parts(_request, _caller):
        return ListInParts(pieces(rows, fail))

    async with serving_large(tmp_path, {"list": list_in_parts}):
        [answer] = await talk(tmp_path, b'{"op":"list"}\n')
    assert answer["data"] == list(range(rows))
    assert (answer["ok"], answer.get("error")) == (not fail, "the file is gone" if fail else None)


async def test_a_part_is_made_when_the_one_before_was_read(tmp_path):
    """A client that does not read has no more than its buffers made for it."""
    made = 0

    async def many():
        nonlocal made
        while True:
            made += 1
            yield json.dumps("x" * 10_000).encode()

    async def endless(_request, _caller):
        return ListInParts(many())

    async with serving_large(tmp_path, {"list": endless}) as server:
        lazy = socket.socket(socket.AF_UNIX)
        lazy.connect(str(tmp_path / "ctl.sock"))
        lazy.sendall(b'{"op":"list"}\n')
        before = -1
        while made != before or not made:
            before = made
            await asyncio.sleep(0.2)
        assert made < 200
        assert len(server._clients) == 1
        lazy.close()
        await until(lambda: not server._clients)


async def test_large_requests_of_one_user_do_not_keep_others_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(control_server, "WAIT_S", 0.05)
    caller = [Caller(1, 1001, frozenset({7}))]
    monkeypatch.setattr(control_server, "caller_of", lambda _: caller[0])
    go_on = asyncio.Event()

    async def slow(request, _caller):
        if request.get("wait"):
            await go_on.wait()
        return "done"

    async with serving_large(tmp_path, {"slow": slow}) as server:
        server.access = Access(read=7)
        waiting = [asyncio.create_task(talk(tmp_path, b'{"op":"slow","wait":1}\n'))
                   for _ in range(2)]  # fmt: skip
        await until(lambda: server._large_places.taken == 2)
        [answer] = await talk(tmp_path, b'{"op":"slow"}\n')
        assert answer["error"] == (
            "busy: uid 1001 has 2, the most for one user (large requests at once); "
            "wait for those, or ask for less"
        )
        caller[0] = Caller(1, 1002, frozenset({7}))
        assert (await talk(tmp_path, b'{"op":"slow"}\n'))[0]["ok"]
        go_on.set()
        assert [answer["data"] for [answer] in await asyncio.gather(*waiting)] == ["done", "done"]
        assert server._large_places.taken == 0


async def test_whoever_has_had_much_waits_before_the_next_answer_and_between_parts(
    tmp_path, monkeypatch
):
    """Work in the loop counts, and in threads; the next connection of that user waits, too."""
    caller = [Caller(1, 1001, frozenset({7}))]
    monkeypatch.setattr(control_server, "caller_of", lambda _: caller[0])
    done = 0

    def work():
        nonlocal done
        done += 1
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass
        return b"1"

    async def parts():
        while True:
            yield await asyncio.get_running_loop().run_in_executor(None, charged(work))

    async def endless(_request, _caller):
        return ListInParts(parts())

    async def long(_request, _caller):
        return work().decode()

    async with serving_large(tmp_path, {"list": endless, "long": long}) as server:
        now = [0.0]
        server._work = WorkPace(lambda: now[0])
        server.access = Access(read=7)
        _, writer = await connect(tmp_path)
        writer.write(b'{"op":"list"}\n')
        await until(lambda: server._work.delay_s(Standing.READER, 1001) > 0)
        assert done == 4, "its second of work, and a part more"
        waiting = asyncio.create_task(talk(tmp_path, b'{"op":"long"}\n'))
        await until(lambda: server._places.taken == 2)
        caller[0] = Caller(1, 0)
        for _ in range(3):
            assert (await talk(tmp_path, b'{"op":"long"}\n'))[0]["ok"]
        assert done == 7, "root is served, and nobody else"
        assert not waiting.done()
        now[0] = 100.0
        assert (await waiting)[0]["ok"]
        writer.close()


async def test_a_large_request_waits_for_its_users_earlier_one(tmp_path):
    order = []

    async def slow(request, _caller):
        await asyncio.sleep(0.05)
        order.append(request["n"])
        return request["n"]

    async with serving_large(tmp_path, {"slow": slow}):
        asked = [talk(tmp_path, b'{"op":"slow","n":%d}\n' % n) for n in range(12)]
        answers = await asyncio.gather(*asked)
    assert sorted(answer["data"] for [answer] in answers) == sorted(order) == list(range(12))


async def test_old_socket_is_replaced_and_mode_is_restricted(tmp_path):
    (tmp_path / "ctl.sock").write_text("stale")
    async with serving(tmp_path):
        assert (tmp_path / "ctl.sock").stat().st_mode & 0o777 == 0o660
    assert not (tmp_path / "ctl.sock").exists()


async def test_without_a_group_the_socket_is_its_owners_alone(tmp_path):
    server = ControlServer(tmp_path / "ctl.sock")
    await server.start({"echo": echo})
    assert (tmp_path / "ctl.sock").stat().st_mode & 0o777 == 0o600
    await server.stop()


@pytest.mark.parametrize(
    ("uid", "groups", "ask", "change"),
    [
        (0, {0}, True, True),
        (4711, {7}, True, False),  # read group
        (4711, {8}, True, True),  # admin group
        (4711, {7, 8}, True, True),
        (4711, {9}, False, False),
        (4711, set(), False, False),
    ],
)
def test_who_may_ask_and_who_may_change(uid, groups, ask, change):
    access = Access(read=7, admin=8)
    caller = Caller(1, uid, frozenset(groups))
    assert (access.may_ask(caller), access.may_change(caller)) == (ask, change)


def test_a_group_that_does_not_exist_gives_nobody_anything():
    access = Access.of("no-such-group", "")
    assert (access.read, access.admin) == (None, None)
    assert not access.may_change(Caller(1, 4711, frozenset({0})))


def test_a_group_that_was_admin_once_keeps_nothing(tmp_path):
    """The entry of an ACL that stays is revived by the next group's mode."""
    path = tmp_path / "ctl.sock"
    path.touch()
    own, other = os.getegid(), os.getegid() + 1
    Access(read=own, admin=other).guard(path)
    if "system.posix_acl_access" not in os.listxattr(path):
        pytest.skip("no ACLs on this file system")
    Access(read=own).guard(path)
    assert "system.posix_acl_access" not in os.listxattr(path)
    assert path.stat().st_mode & 0o777 == 0o660


async def test_other_groups_count_at_once_for_file_and_callers(tmp_path):
    async with serving(tmp_path) as server:
        path = tmp_path / "ctl.sock"
        assert path.stat().st_mode & 0o777 == 0o660
        server.regard(Access())
        assert path.stat().st_mode & 0o777 == 0o600
        assert server.access == Access()
        path.unlink()
        server.regard(Access(read=os.getegid()))  # said in the log; nothing else can be done


def test_the_kernel_tells_the_callers_groups():
    a, b = socket.socketpair(socket.AF_UNIX)
    with a, b:
        caller = caller_of(a)
    assert caller.uid == os.geteuid()
    assert caller.pid == os.getpid()
    assert caller.groups == {os.getegid(), *os.getgroups()}


async def test_what_changes_something_takes_an_administrator(tmp_path, monkeypatch):
    async with serving(tmp_path) as server:
        stranger = Caller(1, 4711, frozenset({4712}))
        monkeypatch.setattr(control_server, "caller_of", lambda _: stranger)
        assert "may ask" in (await talk(tmp_path, b'{"op":"echo"}\n'))[0]["error"]
        assert server.refused == 1
        reader = Caller(1, 4711, frozenset({os.getegid()}))
        monkeypatch.setattr(control_server, "caller_of", lambda _: reader)
        answers = await talk(tmp_path, b'{"op":"set"}\n{"op":"echo"}\n')
        assert [a["ok"] for a in answers] == [False, True]
        assert "admin_group" in answers[0]["error"]
        server.access = Access(admin=os.getegid())
        answers = await talk(tmp_path, b'{"op":"set"}\n')
        assert answers[0]["ok"]


def test_places_of_a_standing_are_left_also_where_those_above_are_taken():
    """Admins with all that they may have leave none for readers, and root has 8 still."""
    places = Places(CONNECTIONS)
    for uid, count in ((1001, 24), (1002, 24), (1003, 8)):
        for _ in range(count):
            assert places.full(Standing.ADMIN, uid) == ""
            places.take(Standing.ADMIN, uid)
    assert "all 56 places" in places.full(Standing.READER, 2001)
    assert places.full(Standing.ROOT, 0) == ""


def test_what_root_holds_is_not_taken_from_readers():
    places = Places(CONNECTIONS)
    for _ in range(16):
        places.take(Standing.ROOT, 0)
    for number in range(1, 49):
        assert places.full(Standing.READER, number) == ""
        places.take(Standing.READER, number)
    assert "all 48 places" in places.full(Standing.READER, 99)
    places.give_back(Standing.READER, 7)
    assert places.full(Standing.READER, 99) == ""
