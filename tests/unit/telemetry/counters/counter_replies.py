"""Fixtures read, and the replies that several tests take."""

from pathlib import Path

from lab.inputs import kernel_replies as kernel

FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name):
    """Native name → number."""
    lines = (FIXTURES / name).read_text().splitlines()
    rows = [line.rsplit(": ", 1) for line in lines if not line.startswith("#")]
    assert len({row[0] for row in rows}) == len(rows)
    return {name: int(value) for name, value in rows}


def files(name):
    """The same as file contents."""
    return {key: f"{value}\n".encode() for key, value in fixture(name).items()}


def folder(path, name, **changed):
    """The same as a folder of a port."""
    path.mkdir(parents=True, exist_ok=True)
    for key, value in {**fixture(name), **changed}.items():
        (path / key).write_text(f"{value}\n")


STANDARD = kernel.standard_reply(
    {0: {0: 11}, 1: {0: 500, 4: 3, 5: 2, 6: 9000, 21: 4}, 2: {0: 1}, 3: {0: 5, 1: 6, 2: 7, 3: 8}}
)
BINS = (
    kernel.fec_bin(0, 0, 9 << 32, 9 << 31, 9 << 31),
    kernel.fec_bin(1, 3, 120, 70, 50),
    kernel.fec_bin(4, 15, 2, 2, 0),
)
FEC = kernel.fec_reply([122, 72, 50], [1], [], *BINS)
FEC_OLD = kernel.fec_reply([122, 72, 50], [1], [])
PAUSE = kernel.pause_reply(tx=14, rx=15234)
