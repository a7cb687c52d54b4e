"""Which sockets belong to a generation over gloo."""

import socket

from on_demand import on_demand

gloo_group = on_demand("fabric_train.groups.gloo_group", needs="torch")


def test_a_socket_that_takes_the_number_of_one_that_was_closed_meanwhile_is_a_new_one():
    """Else nobody would shut it down, and who waits on it would wait for a rank that is gone."""
    old = socket.socket()
    kept = socket.socket()
    before = gloo_group._descriptors()
    number = old.fileno()
    old.close()
    new = socket.socket()
    try:
        assert new.fileno() == number
        opened = gloo_group._opened_since(before)
        assert number in opened
        assert kept.fileno() not in opened
    finally:
        new.close()
        kept.close()
