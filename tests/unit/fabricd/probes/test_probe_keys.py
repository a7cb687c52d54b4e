"""Key files: what is one, the steps of a rotation, and no key in any message."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fabricd.cli import app
from fabricd.probes import keys
from fabricd.probes.keys import KeyFileError

# The same in every process: they name test cases, and two processes share these out.
_RANDOM = random.Random(5)
A, B = (_RANDOM.randbytes(32).hex() for _ in range(2))


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "probe.key"
    path.touch(0o600)
    path.write_text(f"# the fabric's\n{A}\n")
    return path


def test_a_rotation_in_three_steps():
    text = keys.step(f"# x\n{A}\n", "add", B)
    assert text == f"{keys.ADDED}\n{A}\n{B}\n", "the old one signs still"
    text = keys.step(text, "use")
    assert text == f"{keys.USED}\n{B}\n{A}\n"
    assert keys.step(text, "drop") == f"{B}\n"
    by_hand = f"{A}\n{B}\n"
    assert keys.step(by_hand, "drop") == f"{A}\n", "no comment says otherwise"
    fresh = keys.parse(keys.step(A, "add"))
    assert len({*fresh}) == 2


@pytest.mark.parametrize(
    ("text", "step", "new", "why"),
    [
        (A, "use", "", "one key only"),
        (A, "drop", "", "one key only"),
        (A, "add", A.upper(), "in it already"),
        (A, "add", "zz", "64 hexadecimal"),
        (A, "turn", "", "allowed are add, use, drop"),
        (f"{keys.ADDED}\n{A}\n{B}\n", "add", "", "under way"),
        (f"{keys.ADDED}\n{A}\n{B}\n", "drop", "", "use the new one first"),
        (f"{keys.USED}\n{B}\n{A}\n", "use", "", "signs already"),
        ("", "add", "", "no key in it"),
        ("\n".join(_RANDOM.randbytes(32).hex() for _ in range(8)), "add", "", "drop the old ones"),
    ],
)
def test_steps_that_are_not_possible(text, step, new, why):
    with pytest.raises(KeyFileError, match=why):
        keys.step(text, step, new)


def test_a_file_that_others_may_read_is_refused(key):
    assert keys.parse(keys.read(key)) == [bytes.fromhex(A)]
    key.chmod(0o640)
    with pytest.raises(KeyFileError, match="mode 0640; allowed: its owner alone"):
        keys.read(key)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", (A[:63]).encode(), (A + "x").encode()])
def test_bad_files_are_refused_without_a_word_of_them(key, content):
    key.write_bytes(content)
    with pytest.raises(KeyFileError) as caught:
        keys.read(key)
    assert A[:8] not in str(caught.value)
    assert str(key) in str(caught.value)


@given(st.text(max_size=200))
def test_any_text_is_keys_or_refused(text):
    try:
        found = keys.parse(text)
    except KeyFileError:
        return
    assert all(len(k) == 32 for k in found)


def test_rotate_writes_the_file_for_its_owner_alone(key, tmp_path):
    other = tmp_path / "new.key"
    other.touch(0o600)
    other.write_text(B)
    run = CliRunner().invoke
    done = run(app, ["key", "rotate", "add", "--key-file", str(key), "--new", str(other)])
    assert done.exit_code == 0, done.output
    assert key.read_text() == f"{keys.ADDED}\n{A}\n{B}\n"
    assert key.stat().st_mode & 0o777 == 0o600
    assert A not in done.output
    names = [keys.fingerprint(bytes.fromhex(each)) for each in (A, B)]
    assert f"{names[0]} signs, {names[1]} is accepted" in done.output
    for step, status in (("drop", 1), ("use", 0), ("use", 1), ("drop", 0), ("drop", 1)):
        assert run(app, ["key", "rotate", step, "--key-file", str(key)]).exit_code == status
    assert key.read_text() == f"{B}\n"


def test_load_without_a_prober_says_so(key, tmp_path):
    done = CliRunner().invoke(
        app, ["key", "load", "--key-file", str(key), "--run-dir", str(tmp_path)]
    )
    assert done.exit_code == 1
    assert "No such file" in done.stderr
