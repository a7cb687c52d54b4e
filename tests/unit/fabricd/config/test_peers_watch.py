"""When a changed ``peers_file`` is read again: `PeersWatch` with a clock of its own."""

import os
import time

import pytest

from fabricd.config.peers_file import FileState, file_state
from fabricd.config.peers_watch import SETTLE_NS, PeersWatch

S = 10**9
A, B, C = (FileState(1, inode, 10, inode, inode) for inode in (1, 2, 3))
GONE = FileState(error="No such file or directory")


class Watched:
    """Looks once a second, as the daemon does; ``read``: what a reload has read last."""

    def __init__(self, read=A):
        self.watch, self.read, self.now, self.name = PeersWatch(), read, 0, "/peers.toml"

    def look(self, *states):
        """Whether each of these asked for a reload; a reload reads what is there."""
        return [self._once(state) for state in states]

    def _once(self, state):
        self.now += S
        asked = self.watch.update(self.name, state, self.read, self.now)
        if asked:
            self.read = state
        return asked


def test_a_look_a_second_settles_within_two():
    assert SETTLE_NS < S


def test_a_file_that_stays_is_never_read_again():
    assert not any(Watched().look(*[A] * 50))


def test_a_change_is_read_once_it_rests():
    assert Watched().look(A, B, B, B, B) == [False, False, True, False, False]


def test_a_file_that_is_being_written_is_left_alone():
    growing = [FileState(1, 1, size, size, size) for size in range(20)]
    made = Watched()
    assert not any(made.look(*growing))
    assert made.look(growing[-1], growing[-1]) == [True, False]


def test_a_change_back_is_a_change():
    assert Watched().look(B, B, A, A) == [False, True, False, True]


def test_one_that_changes_and_is_as_before_at_the_next_look_is_none():
    assert not any(Watched().look(A, B, A, A, A))


def test_a_file_that_goes_is_said_once_and_read_when_it_is_back():
    assert Watched().look(A, GONE, GONE, GONE, B, B, B) == [
        False, False, True, False, False, True, False
    ]  # fmt: skip


def test_a_version_is_asked_for_once_though_no_reload_came_to_it():
    made = Watched()

    def look(state):
        made.now += S
        return made.watch.update(made.name, state, A, made.now)

    assert [look(x) for x in (B, B, B, B)] == [False, True, False, False]
    assert [look(x) for x in (C, C)] == [False, True]
    assert [look(x) for x in (B, B)] == [False, True], "it comes back: tried again"


def test_what_a_reload_by_hand_has_read_is_not_read_again():
    made = Watched()
    made.look(A, B)
    made.read = B
    assert not any(made.look(B, B, B))


def test_another_name_is_another_file():
    made = Watched()
    made.look(A, A)
    made.name, made.read = "/other.toml", None
    assert made.look(A, A) == [False, True]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "peers.toml"
    path.write_text("a")
    return path


def in_place(file):
    time.sleep(0.02)  # A kernel's time stamps are of its last tick.
    file.write_text("b")


def renamed_over(file):
    new = file.with_suffix(".new")
    new.write_text("a")
    os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    new.replace(file)


@pytest.mark.parametrize("change", [in_place, renamed_over])
def test_each_way_to_replace_a_file_is_seen(file, change):
    before = file_state(str(file))
    change(file)
    assert file_state(str(file)) != before


def test_a_config_map_whose_link_moves_is_seen(tmp_path):
    """As the kubelet does: peers.toml → ..data/peers.toml, ..data → a directory with a date."""
    for name in ("..1", "..2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "peers.toml").write_text("same")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "peers.toml").symlink_to("..data/peers.toml")
    before = file_state(str(tmp_path / "peers.toml"))
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert file_state(str(tmp_path / "peers.toml")) != before


def test_a_file_that_cannot_be_read_has_a_state_too(tmp_path):
    assert file_state(str(tmp_path / "none")).error == "No such file or directory"
