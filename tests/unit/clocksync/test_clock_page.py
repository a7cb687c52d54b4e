"""The clock page: written in Python, read in Python and in C."""

import contextlib
import json
import os
import random
import struct
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import clocksync
from clocksync.page import clock_page, latch
from clocksync.page.clock_page import (
    NOTHING,
    ClockError,
    ClockPage,
    ClockReader,
    Line,
    State,
    decode,
    encode,
)

HEADER = Path(clocksync.__file__).parent / "include"
SECOND = 10**9
PROGRAM = r"""
#include <fabric/clock.h>
#include <stddef.h>
#define AT(field) printf("\"%s\": %zu, ", #field, offsetof(struct fabric_clock_page, field))
#define IN(field) \
  printf("\"%s\": %zu, ", #field, offsetof(struct fabric_clock_page, line[0].field))
int main(int argc, char** argv) {
  struct fabric_clock clock;
  struct fabric_time now, before;
  long i, rounds = argc > 2 ? atol(argv[2]) : 0, good = 0, stale = 0, bad = 0;
  int error;
  if (argc == 1) {
    printf("{");
    AT(magic); AT(version); AT(used); AT(seq);
    IN(check); IN(raw_ns); IN(fabric_ns); IN(slope); IN(bound_ns); IN(drift); IN(wander);
    IN(fresh_ns); IN(end_ns); IN(state); IN(reference); IN(epoch); IN(reserved);
    printf("\"size\": %zu}\n", sizeof(struct fabric_clock_page));
    return 0;
  }
  error = fabric_clock_open(&clock, argv[1]);
  if (error != 0) { printf("{\"open\": %d}\n", error); return 0; }
  memset(&before, 0, sizeof before);
  for (i = 0; i < rounds; ++i) {
    error = fabric_clock_now(&clock, &now);
    if (error == ESTALE) { ++stale; continue; }
    if (error != 0) { ++bad; continue; }
    ++good;
    /* The writer puts the reference into the bound. */
    if (now.epoch == before.epoch && now.ns < before.ns) ++bad;
    if (now.bound_ns < (double)now.reference) ++bad;
    before = now;
  }
  printf("{\"good\": %ld, \"stale\": %ld, \"bad\": %ld, \"ns\": %lld, \"bound\": %.3f, "
         "\"state\": %d}\n", good, stale, bad, (long long)before.ns, before.bound_ns,
         (int)before.state);
  fabric_clock_close(&clock);
  return 0;
}
"""


def raw_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def line(**changes):
    base = Line(
        raw_ns=raw_ns(), fabric_ns=1_800_000_000 * SECOND, slope=12e-6, bound_ns=40.0, drift=1e-8,
        wander=0.0, fresh_ns=SECOND, end_ns=60 * SECOND, state=State.LOCKED, reference=7, epoch=3,
    )  # fmt: skip
    return replace(base, **changes)


@pytest.fixture
def written(tmp_path):
    made = ClockPage(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module", params=["cc", "c++"])
def program(request, tmp_path_factory):
    """The reader in C and in C++, with every warning an error."""
    folder = tmp_path_factory.mktemp("clock")
    source = folder / ("read.c" if request.param == "cc" else "read.cpp")
    source.write_text(PROGRAM)
    language = "-std=c99" if request.param == "cc" else "-std=c++20"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", language, f"-I{HEADER}"]
    subprocess.run([request.param, *flags, str(source), "-o", str(folder / "read")], check=True)

    def run(*words):
        done = subprocess.run([folder / "read", *words], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


def test_the_layout_is_that_of_the_header(program):
    at, wanted = 0, {}
    for name, code in (latch.HEAD_FIELDS | clock_page.FIELDS).items():
        wanted[name] = at
        at += struct.calcsize("<" + code)
    line_size = at - latch.RECORDS_AT
    assert program() == wanted | {"size": at + line_size}
    assert at + line_size == clock_page.KIND.used


def test_what_is_written_is_read_in_both_languages(tmp_path, written, program):
    written.write(line())
    with ClockReader(tmp_path) as reader:
        here = reader.now()
    there = program(str(tmp_path), "1")
    assert there["good"] == 1
    assert 0 < there["ns"] - here.ns < 5 * SECOND
    assert here.bound_ns == pytest.approx(40, abs=10)
    assert (here.state, here.reference, here.epoch) == (State.LOCKED, 7, 3)
    assert there["state"] == State.LOCKED


def test_the_line_is_followed_and_its_bound_grows():
    said = line(wander=2e-18)
    later = said.at(said.raw_ns + 30 * SECOND)
    assert later.ns == said.fabric_ns + 30 * SECOND + 360_000
    assert later.bound_ns == pytest.approx(40 + 300 + 900)
    assert later.state is State.HOLDOVER
    assert said.at(said.raw_ns + SECOND // 2).state is State.LOCKED
    with pytest.raises(ClockError, match="nothing was published for 61"):
        said.at(said.raw_ns + 61 * SECOND)


def test_a_moment_before_the_origin_is_no_moment_long_ago():
    said = line()
    assert said.at(said.raw_ns - 1000).ns == said.fabric_ns - 1000
    with pytest.raises(ClockError):
        said.at(said.raw_ns - 61 * SECOND)


@pytest.mark.parametrize("lower_ns", [500_000, 1])
def test_time_does_not_go_back_but_for_another_epoch(tmp_path, written, lower_ns, program):
    began = line(slope=0.0)
    written.write(began)
    with ClockReader(tmp_path) as reader:
        first = reader.now()
        lower = replace(began, fabric_ns=began.fabric_ns - 10**9 * lower_ns)
        written.write(lower)
        second = reader.now()
        assert second.ns >= first.ns
        assert second.bound_ns > 10**9 * lower_ns / 2, "the bound holds all the same"
        written.write(replace(lower, epoch=4))
        assert reader.now().ns < first.ns


def test_no_time_in_between_is_no_other_epoch(tmp_path, written):
    began = line(slope=0.0)
    written.write(began)
    with ClockReader(tmp_path) as reader:
        first = reader.now()
        written.write(NOTHING)
        with pytest.raises(ClockError, match="unsynchronized"):
            reader.now()
        written.write(replace(began, fabric_ns=began.fabric_ns - 10**9))
        second = reader.now()
        assert second.ns >= first.ns
        assert second.bound_ns > 10**9 / 2


def test_without_time_there_is_an_error(tmp_path, written, program):
    with ClockReader(tmp_path) as reader:
        with pytest.raises(ClockError, match="unsynchronized"):
            reader.now()
        assert program(str(tmp_path), "5") | {"ns": 0} == {
            "good": 0, "stale": 5, "bad": 0, "ns": 0, "bound": 0, "state": 0,
        }  # fmt: skip
        written.write(line(raw_ns=raw_ns() - 3600 * SECOND))
        with pytest.raises(ClockError, match="nothing was published for 36"):
            reader.now()
    with pytest.raises(ClockError, match="No such file"):
        ClockReader(tmp_path / "nowhere")
    assert program(str(tmp_path / "nowhere"), "1") == {"open": 2}


def test_the_next_service_takes_the_page_over(tmp_path, written):
    written.write(line(epoch=9))
    with ClockReader(tmp_path) as reader:
        other = ClockPage(tmp_path)
        assert other.last is not None
        assert other.last.epoch == 9
        other.write(line(epoch=10))
        other.close()
        assert reader.now().epoch == 10


@pytest.mark.parametrize("there", [b"", b"x" * latch.SIZE, bytes(latch.SIZE)])
def test_what_is_no_page_is_replaced_or_mended(tmp_path, there, program):
    (tmp_path / "clock").write_bytes(there)
    with pytest.raises(ClockError):
        ClockReader(tmp_path)
    assert "open" in program(str(tmp_path), "1")
    made = ClockPage(tmp_path)
    assert made.last is None
    made.write(line())
    made.close()
    with ClockReader(tmp_path) as reader:
        assert reader.now().reference == 7
    assert (tmp_path / "clock").stat().st_mode & 0o777 == 0o644 or there


def test_readers_beside_a_writer_see_whole_lines_only(tmp_path, written, program):
    stop = threading.Event()
    rng = random.Random(1)
    fabric = 1_800_000_000 * SECOND
    began = raw_ns()

    def write():
        while not stop.is_set():
            now, reference = raw_ns(), rng.randrange(1, 1 << 30)
            written.write(line(raw_ns=now, fabric_ns=fabric + now - began, slope=0.0,
                               bound_ns=float(reference), reference=reference))  # fmt: skip

    thread = threading.Thread(target=write)
    written.write(line(raw_ns=began, fabric_ns=fabric, slope=0.0, bound_ns=7.0))
    thread.start()
    try:
        there = program(str(tmp_path), "300000")
        with ClockReader(tmp_path) as reader:
            for _ in range(3000):
                seen = reader.now()
                assert seen.bound_ns >= seen.reference
    finally:
        stop.set()
        thread.join()
    assert there["bad"] == 0
    assert there["good"] == 300_000


def test_any_bytes_are_refused_or_a_line(tmp_path):
    rng = random.Random(5)
    sound = encode(line())
    taken = 0
    for _ in range(3000):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.7:  # past the check
            struct.pack_into("<Q", data, 0, latch.check(data))
        with contextlib.suppress(ClockError):
            found = decode(bytes(data))
            taken += 1
            assert found.at(raw_ns()).bound_ns >= 0
    assert 0 < taken < 3000
    for length in (0, 1, len(sound) - 1, len(sound) + 1):
        with pytest.raises(ClockError):
            decode(sound.ljust(length, b"x")[:length])


def test_now_is_this_host_s(tmp_path, written, monkeypatch):
    monkeypatch.setenv("FABRIC_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(clock_page, "_own", clock_page._Own())
    written.write(line())
    assert clocksync.now is clock_page.now
    at, bound = clocksync.now()
    assert at > 1_800_000_000 * SECOND
    assert bound >= 40
    assert os.environ["FABRIC_RUN_DIR"] == str(tmp_path)


def test_each_thread_has_a_reader_of_its_own(tmp_path, written, monkeypatch):
    monkeypatch.setenv("FABRIC_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(clock_page, "_own", clock_page._Own())
    written.write(line())
    clocksync.now()
    seen = [clock_page._own.reader]

    def read():
        clocksync.now()
        seen.append(clock_page._own.reader)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert len(seen) == 2
    assert seen[0] is not seen[1]


def test_a_page_that_was_replaced_is_found_once_the_old_one_is_old(tmp_path, written):
    written.write(line(fresh_ns=0))
    with ClockReader(tmp_path) as reader:
        assert reader.now().reference == 7
        (tmp_path / "clock").unlink()
        assert reader.now().state is State.HOLDOVER, "no other: the old one is better than none"
        other = ClockPage(tmp_path)
        other.write(line(reference=9))
        assert reader.now().reference == 9
        other.close()
        (tmp_path / "next").write_bytes(b"of another version".ljust(latch.SIZE))
        written.write(line())
        (tmp_path / "next").rename(tmp_path / "clock")
        assert reader.now().reference == 9, "it is fresh"


@pytest.mark.parametrize("content", [b"", b"of another version".ljust(latch.SIZE)])
def test_a_page_replaced_by_none_is_an_error_until_there_is_one(tmp_path, written, content):
    written.write(line(fresh_ns=0))
    with ClockReader(tmp_path) as reader:
        (tmp_path / "next").write_bytes(content)
        (tmp_path / "next").rename(tmp_path / "clock")
        for _ in range(2):
            with pytest.raises(ClockError, match="not a clock page"):
                reader.read()
        other = ClockPage(tmp_path)
        other.write(line(reference=9))
        assert reader.now().reference == 9
        other.close()


def test_a_writer_that_died_in_the_midst_keeps_nobody_waiting(tmp_path, written, program):
    written.write(line(reference=1, epoch=1, bound_ns=9.0))
    written.write(line(reference=2, epoch=1, bound_ns=9.0))
    with (tmp_path / "clock").open("r+b") as file:
        file.seek(latch.RECORDS_AT + clock_page.KIND.record)  # two writes: the first holds
        file.write(b"\xa5" * 50)
    with ClockReader(tmp_path) as reader:
        assert reader.now().reference == 2
    assert program(str(tmp_path), "3")["good"] == 3
    other = ClockPage(tmp_path)
    other.write(line(reference=3))
    other.close()
    with ClockReader(tmp_path) as reader:
        assert reader.now().reference == 3
