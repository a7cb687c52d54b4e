"""Which sockets belong to a generation over gloo."""

import socket
import threading
from types import SimpleNamespace

import pytest


def test_a_socket_that_takes_the_number_of_one_that_was_closed_meanwhile_is_a_new_one():
    """Else nobody would shut it down, and who waits on it would wait for a rank that is gone."""
    pytest.importorskip("torch")
    from fabric_train.groups.gloo_group import _descriptors, _opened_since

    old = socket.socket()
    kept = socket.socket()
    before = _descriptors()
    number = old.fileno()
    old.close()
    new = socket.socket()
    try:
        assert new.fileno() == number
        opened = _opened_since(before)
        assert number in opened
        assert kept.fileno() not in opened
    finally:
        new.close()
        kept.close()


class Crossing:
    """The all-to-all of ``world`` ranks in threads; ``forge`` changes what a sender says."""

    def __init__(self, world, forge):
        self.world = world
        self.forge = forge
        self.said = {}
        self.all_here = threading.Barrier(world)

    def of(self, rank):
        def all_to_all_single(theirs, mine, *_):
            size = len(mine) // self.world
            for other in range(self.world):
                part = mine[other * size : (other + 1) * size].clone()
                self.said[rank, other] = self.forge(rank, other, part)
            self.all_here.wait()
            for other in range(self.world):
                theirs[other * size : (other + 1) * size] = self.said[other, rank]
            return SimpleNamespace(wait=lambda: None)

        return SimpleNamespace(all_to_all_single=all_to_all_single)


def proved(forge, world=4):
    """What each rank says: "" or whom it does not believe."""
    torch_distributed = pytest.importorskip("torch.distributed")
    from fabric_train.groups.gloo_group import prove_ranks

    crossing, store = Crossing(world, forge), torch_distributed.HashStore()
    said = {}

    def run(rank):
        try:
            prove_ranks(crossing.of(rank), store, rank, world)
        except RuntimeError as error:
            said[rank] = str(error)
        else:
            said[rank] = ""

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [said[rank] for rank in range(world)]


def test_ranks_that_meet_in_one_store_believe_each_other():
    assert proved(lambda _sender, _receiver, part: part) == [""] * 4


@pytest.mark.parametrize("kind", ["nothing", "its own back", "another rank's"])
def test_who_does_not_know_the_secret_of_the_generation_is_found_out(kind):
    seen = {}

    def forge(sender, receiver, part):
        seen[sender, receiver] = part
        if (sender, receiver) != (2, 1):
            return part
        if kind == "nothing":
            return part.zero_()
        return seen[1, 2] if kind == "its own back" else seen[2, 0]

    if kind == "its own back":  # rank 1 has said it before: the stranger waits for it
        order = threading.Event()
        first = forge

        def forge(sender, receiver, part):
            if (sender, receiver) == (2, 1):
                order.wait(60)
            result = first(sender, receiver, part)
            if (sender, receiver) == (1, 2):
                order.set()
            return result

    said = proved(forge)
    assert said[1] == "who is connected as rank 2 does not know the generation's secret"
    assert [said[0], *said[2:]] == ["", "", ""]


def test_a_listener_that_is_closed_to_all_keeps_its_connections_and_takes_no_other():
    pytest.importorskip("torch")
    from fabric_train.groups.gloo_group import _close_to_all

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, 60) as before:
            kept, _ = listener.accept()
            with kept:
                _close_to_all(listener)
                with pytest.raises(TimeoutError):
                    socket.create_connection(address, 0.3)
                before.sendall(b"x")
                kept.settimeout(60)
                assert kept.recv(1) == b"x"
