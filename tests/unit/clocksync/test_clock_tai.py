"""The page of TAI: written in Python, read in Python and in C."""

import json
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clocksync.page import clock_page, latch, tai_page
from clocksync.page.clock_page import ClockError, Line, State
from clocksync.page.tai_page import NO_TAI, Source, TaiLine, TaiPage, TaiReader, decode, encode

HEADER = Path(__file__).resolve().parents[3] / "clocksync/include"
SECOND = 10**9
NOW = 1_800_000_037 * SECOND
PROGRAM = r"""
#include <fabric/tai.h>
#include <stddef.h>
#define AT(field) printf("\"%s\": %zu, ", #field, offsetof(struct fabric_tai_page, field))
#define IN(field) \
  printf("\"%s\": %zu, ", #field, offsetof(struct fabric_tai_page, record[0].field))
int main(int argc, char** argv) {
  struct fabric_tai clock;
  struct fabric_tai_time now;
  int error;
  if (argc == 1) {
    printf("{");
    AT(magic); AT(version); AT(used); AT(seq);
    IN(line.check); IN(line.raw_ns); IN(line.fabric_ns); IN(line.epoch); IN(line.reserved);
    IN(grandmaster); IN(utc_offset_s); IN(flags); IN(steps_removed); IN(clock_class);
    IN(accuracy); IN(leap);
    printf("\"size\": %zu}\n", sizeof(struct fabric_tai_page));
    return 0;
  }
  memset(&now, 0, sizeof now);
  error = fabric_tai_open(&clock, argv[1]);
  if (error == 0) error = fabric_tai_now(&clock, &now);
  if (error != 0) { printf("{\"error\": %d}\n", error); return 0; }
  printf("{\"ns\": %lld, \"utc\": %lld, \"bound\": %.3f, \"state\": %d, \"master\": %llu, "
         "\"flags\": %u, \"class\": %d, \"leap\": %d}\n", (long long)now.time.ns,
         (long long)now.utc_ns, now.time.bound_ns, (int)now.time.state,
         (unsigned long long)now.source.grandmaster, now.source.flags, now.source.clock_class,
         (int)now.source.leap);
  fabric_tai_close(&clock);
  return 0;
}
"""
SOURCE = Source(2**64 - 2, 6, 0x21, 1, 37, True, -1)


def line(**changes):
    base = Line(
        time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW), NOW, 0.0, 4000.0, 0.0, 0.0, 60 * SECOND,
        600 * SECOND, State.LOCKED, 7, 3,
    )  # fmt: skip
    return replace(base, **changes)


@pytest.fixture
def written(tmp_path):
    made = TaiPage(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module", params=["cc", "c++"])
def program(request, tmp_path_factory):
    """The reader in C and in C++, with every warning an error."""
    folder = tmp_path_factory.mktemp("tai")
    source = folder / ("read.c" if request.param == "cc" else "read.cpp")
    source.write_text(PROGRAM)
    language = "-std=c99" if request.param == "cc" else "-std=c++20"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", language, f"-I{HEADER}"]
    subprocess.run([request.param, *flags, str(source), "-o", str(folder / "read")], check=True)

    def run(*words):
        done = subprocess.run([folder / "read", *words], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return run


def test_layout_and_readers_are_those_of_the_header(program, tmp_path, written):
    at, wanted = 0, {}
    names = [(name, f"line.{name}") for name in clock_page.FIELDS] + [
        (n, n) for n in tai_page.FIELDS
    ]
    for name, code in latch.HEAD_FIELDS.items():
        wanted[name] = at
        at += struct.calcsize("<" + code)
    begin = at
    for name, shown in names:
        wanted[shown] = at
        at += struct.calcsize("<" + (clock_page.FIELDS | tai_page.FIELDS)[name])
    found = program()
    assert found.pop("size") == begin + 2 * (at - begin) == tai_page.KIND.used
    assert found == {name: wanted[name] for name in found}

    assert program(str(tmp_path)) == {"error": 116}, "ESTALE: nothing was written yet"
    written.write(TaiLine(line(), SOURCE))
    said = program(str(tmp_path))
    passed = said.pop("ns") - NOW
    assert 0 <= passed < 60 * SECOND
    assert said.pop("utc") == NOW + passed - 37 * SECOND
    assert said == {
        "bound": 4000.0, "state": 1, "master": 2**64 - 2, "class": 6, "leap": -1,
        "flags": tai_page.UTC_KNOWN | tai_page.TRACEABLE,
    }  # fmt: skip
    (tmp_path / "clock-tai").write_bytes(b"x" * latch.SIZE)
    assert program(str(tmp_path)) == {"error": 71}, "EPROTO"
    assert program(str(tmp_path / "nowhere")) == {"error": 2}


def test_what_is_written_is_read(tmp_path, written):
    written.write(TaiLine(line(), SOURCE))
    with TaiReader(tmp_path) as reader:
        first, second = reader.now(), reader.now()
        assert NOW <= first.ns <= second.ns < NOW + 60 * SECOND
        assert (first.bound_ns, first.state, first.host) == (4000.0, State.LOCKED, 7)
        assert first.source == SOURCE
        assert first.utc_ns == first.ns - 37 * SECOND
        written.write(TaiLine(line(fabric_ns=NOW - 60 * SECOND), SOURCE))
        third = reader.now()
        assert third.ns == second.ns, "it does not go back"
        assert third.bound_ns >= 4000 + 59 * SECOND
        written.write(TaiLine(line(fabric_ns=NOW - 60 * SECOND, epoch=4), Source()))
        fourth = reader.now()
        assert fourth.ns < NOW, "but in another epoch"
        assert fourth.utc_ns is None


def test_a_page_that_was_replaced_is_found_once_the_old_one_is_old(tmp_path, written):
    written.write(TaiLine(line(fresh_ns=0), SOURCE))
    with TaiReader(tmp_path) as reader:
        assert reader.now().host == 7
        (tmp_path / "clock-tai").unlink()
        other = TaiPage(tmp_path)
        other.write(TaiLine(line(reference=9), SOURCE))
        assert reader.now().host == 9
        other.close()


def test_a_program_reads_it_by_the_environment(tmp_path, written, monkeypatch):
    monkeypatch.setenv("FABRIC_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(tai_page, "_own", tai_page._Own())
    with pytest.raises(ClockError, match="unsynchronized"):
        tai_page.now()
    written.write(TaiLine(line(), SOURCE))
    ns, bound = tai_page.now()
    assert ns >= NOW
    assert bound == 4000


def test_the_next_service_finds_what_was_said(tmp_path, written):
    said = TaiLine(line(), SOURCE)
    written.write(said)
    again = TaiPage(tmp_path)
    assert again.last == said
    again.close()


@pytest.mark.parametrize("content", [b"", b"x" * 4096, bytes(4096)])
def test_what_is_no_page_is_refused(tmp_path, content):
    with pytest.raises(ClockError, match="No such file"):
        TaiReader(tmp_path)
    (tmp_path / "clock-tai").write_bytes(content)
    with pytest.raises(ClockError, match="not a page of TAI"):
        TaiReader(tmp_path)
    made = TaiPage(tmp_path)
    assert made.last == NO_TAI
    made.close()


def test_a_damaged_record_is_refused_and_the_page_still_read(tmp_path, written):
    written.write(TaiLine(line(), SOURCE))
    data = bytearray((tmp_path / "clock-tai").read_bytes())
    data[tai_page.KIND.place(1).start + 100] ^= 1
    (tmp_path / "clock-tai").write_bytes(data)
    with TaiReader(tmp_path) as reader:
        with pytest.raises(ClockError, match="damaged"):
            reader.now()
        written.write(TaiLine(line(), SOURCE))
        assert reader.now().ns >= NOW


def test_records_that_cannot_be_are_refused():
    good = encode(TaiLine(line(), SOURCE))
    assert decode(good).source == SOURCE
    for bad in (good[:-1], good[:-1] + bytes([good[-1] ^ 1])):
        with pytest.raises(ClockError):
            decode(bad)
    with pytest.raises(ClockError, match="slope"):
        decode(latch.seal(encode(TaiLine(line(slope=2.0), SOURCE))))


def test_a_job_needs_no_numpy():
    code = "import clocksync.tai, sys; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
