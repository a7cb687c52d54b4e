"""What a look at the clock page takes, in C and in Python, beside the host's own clock."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import clocksync
from bench.report import Row, percentile
from clocksync.page.clock_page import ClockPage, ClockReader, Line, State, now

HEADER = Path(clocksync.__file__).parent / "include"
C_NS, PYTHON_US = 60.0, 1.0
RUN_DIR = "FABRIC_RUN_DIR"
ROUNDS = 1_000_000
PROGRAM = r"""
#include <fabric/clock.h>
static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
int main(int argc, char** argv) {
  struct fabric_clock clock;
  struct fabric_time now;
  struct timespec raw;
  const long rounds = atol(argv[2]);
  long i, bad = 0;
  double began;
  if (argc != 3 || fabric_clock_open(&clock, argv[1]) != 0) return 1;
  began = seconds();
  for (i = 0; i < rounds; ++i) bad += fabric_clock_now(&clock, &now) != 0;
  printf("%.3f ", 1e9 * (seconds() - began) / (double)rounds);
  began = seconds();
  for (i = 0; i < rounds; ++i) bad += clock_gettime(CLOCK_MONOTONIC_RAW, &raw) != 0;
  printf("%.3f\n", 1e9 * (seconds() - began) / (double)rounds);
  return bad != 0;
}
"""


@contextmanager
def by_default(folder: str) -> Iterator[None]:
    """``clocksync.now`` reads the page there until the block ends."""
    was = os.environ.get(RUN_DIR)
    os.environ[RUN_DIR] = folder
    try:
        yield
    finally:
        os.environ.pop(RUN_DIR)
        if was is not None:
            os.environ[RUN_DIR] = was


def reading(*, quick: bool) -> list[Row]:
    """Medians of several runs of a million reads; the peer is clock_gettime by itself."""
    runs = 3 if quick else 15
    c: list[float] = []
    bare: list[float] = []
    python: list[float] = []
    short: list[float] = []
    plain: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "read.c"
        source.write_text(PROGRAM)
        program = str(Path(folder) / "read")
        subprocess.run(
            ["cc", "-O2", "-D_GNU_SOURCE", f"-I{HEADER}", str(source), "-o", program], check=True
        )
        page = ClockPage(Path(folder))
        raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        page.write(Line(raw, raw, 1e-6, 10.0, 1e-9, 0.0, 10**15, 10**15, State.LOCKED, 1, 1))
        with ClockReader(Path(folder)) as reader, by_default(folder):
            for _ in range(runs):
                done = subprocess.run(
                    [program, folder, str(ROUNDS)], check=True, capture_output=True, text=True
                )
                ours, own = (float(word) for word in done.stdout.split())
                c.append(ours)
                bare.append(own)
                began = time.perf_counter()
                for _ in range(ROUNDS // 20):
                    reader.read()
                python.append((time.perf_counter() - began) / (ROUNDS // 20) * 1e6)
                began = time.perf_counter()
                for _ in range(ROUNDS // 20):
                    now()
                short.append((time.perf_counter() - began) / (ROUNDS // 20) * 1e6)
                began = time.perf_counter()
                for _ in range(ROUNDS // 20):
                    time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
                plain.append((time.perf_counter() - began) / (ROUNDS // 20) * 1e6)
        page.close()
    note = "median of runs; the peer is clock_gettime(CLOCK_MONOTONIC_RAW) alone"
    return [
        Row("clock page read in C", C_NS, percentile(c, 0.5), "ns", peer=percentile(bare, 0.5),
            note=note, samples={"ns": c}),
        Row("clock page read in Python", PYTHON_US, percentile(python, 0.5), "µs",
            peer=percentile(plain, 0.5), note=note, samples={"us": python}),
        Row("clocksync.now() in Python", PYTHON_US, percentile(short, 0.5), "µs",
            peer=percentile(plain, 0.5), note=note, samples={"us": short}),
    ]  # fmt: skip
