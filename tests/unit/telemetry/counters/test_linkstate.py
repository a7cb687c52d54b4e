"""Why a port has no carrier: LINKSTATE_GET replies, byte by byte, and every word of the kernel."""

import struct

import pytest
from test_counter_netlink import by_pyroute2

from lab.inputs import kernel_replies as kernel
from telemetry.counters import ethnl, messages
from telemetry.counters.linkstate import STATES, SUBSTATES, DownReason, down_reason
from telemetry.counters.nlattr import decode, layout

LAYOUT = layout(messages.ethtool_linkstate_msg)


def reply(link=0, **states):
    return kernel.linkstate_reply(link, **states)


def reason(**reply_of):
    return down_reason(decode(reply(**reply_of), LAYOUT))


def test_both_decoders_agree():
    payload = reply(state=1, substate=4)
    assert decode(payload, LAYOUT) == by_pyroute2(messages.ethtool_linkstate_msg, payload)


def test_no_cable_bad_signal_and_a_remote_fault():
    assert reason(state=4) == DownReason("no_cable", "no cable")
    assert reason(state=3).text == "bad signal integrity"
    assert reason(state=3, substate=4).text == ("bad signal integrity: SerDes has lost the signal")
    assert reason(state=1, substate=4) == DownReason(
        "remote_fault", "remote fault: the other end is not ready"
    )
    assert reason(state=0, substate=5).text == "autonegotiation fails: FEC of the two ends differs"


def test_with_carrier_or_without_a_word_there_is_no_reason():
    assert reason(link=1, state=4) is None
    assert reason(link=0) is None


def test_what_a_newer_kernel_says_is_its_number():
    assert reason(state=77) == DownReason("state_77", "extended state 77")
    assert reason(state=4, substate=99) == STATES[4]


@pytest.mark.parametrize("state", STATES)
def test_each_word_is_fit_for_a_label(state):
    word = STATES[state].word
    assert word.replace("_", "").isalnum()
    assert word == word.lower()


def test_each_substate_is_of_a_known_state():
    assert {state for state, _ in SUBSTATES} <= set(STATES)


class Kernel:
    """What a netlink socket answers; of an error that."""

    def __init__(self, answer):
        self.answer, self.closed = answer, False

    def generic(self, family, request):
        assert family == "ethtool"
        assert b"rail0" in request
        if isinstance(self.answer, Exception):
            raise self.answer
        return [type("Reply", (), {"payload": struct.pack("=BBH", 6, 1, 0) + self.answer})]

    def close(self):
        self.closed = True


def test_a_driver_that_cannot_say_it_is_no_fault():
    source = ethnl.LinkState("rail0", Kernel(reply(state=4)))
    assert source.reason() == STATES[4]
    source.close()
    for broken in (OSError(95, "not supported"), b"\xff\xff"):
        assert ethnl.LinkState("rail0", Kernel(broken)).reason() is None
