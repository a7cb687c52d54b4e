"""Which sockets belong to a generation over gloo."""

import socket

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
