import contextlib
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train.host import job_socket as j
from fabric_train.messages import addresses
from fabric_train.messages.documents import DocumentError, JobOrder, to_data

ORDER = {"kind": "order", "compute": "one", "order": to_data(JobOrder("i1", "waiting", "why"))}
EXAMPLES = [
    ({"kind": "welcome", "host": "a", "boot_id": "b"}, j.Welcome("a", "b")),
    (ORDER, j.Order("one", JobOrder("i1", "waiting", "why"))),
    ({"kind": "fence", "id": "x", "host": "b", "incarnation": "i"}, j.Fence("x", "b", "i")),
    ({"kind": "stop", "reason": "fenced"}, j.Stop("fenced")),
    ({"kind": "refused", "reason": "another user's"}, j.Refused("another user's")),
    ({"kind": "silent", "hosts": ["b"]}, j.Silent(["b"])),
]


@pytest.mark.parametrize(("data", "message"), EXAMPLES)
def test_a_line_of_fabricd_is_understood(data, message):
    assert j.parse_line(json.dumps(data).encode() + b"\n") == message


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"\xff", "no JSON"),
        ([], "no object"),
        ({"kind": "welcom"}, "unknown kind 'welcom'"),
        ({"kind": {}}, "unknown kind"),
        ({"kind": "stop"}, "fields: reason"),
        ({"kind": "stop", "reason": 7}, "Stop.reason is 7"),
        ({"kind": "stop", "reason": "x", "more": 1}, "fields: more"),
        ({"kind": "order", "compute": "one", "order": {}}, "incarnation, phase"),
        (ORDER | {"order": ORDER["order"] | {"phase": "running away"}}, "phase running away"),
        (ORDER | {"order": ORDER["order"] | {"version": 2}}, "version 2, not 1"),
    ],
)
def test_what_is_no_line_of_fabricd_says_what_is_wrong(data, text):
    line = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(DocumentError, match=text):
        j.parse_line(line)


@given(st.sampled_from(EXAMPLES), st.data())
def test_changed_bytes_give_a_message_or_an_error(example, data):
    raw = bytearray(json.dumps(example[0]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DocumentError):
        assert dataclasses.is_dataclass(j.parse_line(bytes(raw)))


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_an_error(raw):
    with contextlib.suppress(DocumentError):
        j.parse_line(raw)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.2:80", ("127.0.0.2", 80)), ("[fd00::1]:65535", ("fd00::1", 65535))],
)
def test_an_address_comes_back_as_it_was(text, expected):
    assert addresses.split(text) == expected
    assert addresses.join(*expected) == text


@pytest.mark.parametrize("text", ["", "host:1", "1.2.3:4", "1.2.3.4", "1.2.3.4:", "1.2.3.4:70000",
                                  "1.2.3.4:0", "1.2.3.4:-1", "1.2.3.4:٣"])  # fmt: skip
def test_what_is_no_address_is_refused(text):
    with pytest.raises(addresses.AddressError):
        addresses.split(text)


def test_the_address_of_an_interface_is_found_or_its_absence_named():
    assert addresses.of_interface("lo") == "127.0.0.1"
    with pytest.raises(addresses.AddressError, match="interface nothere: No such device"):
        addresses.of_interface("nothere")
    with pytest.raises(addresses.AddressError, match="no name of an interface"):
        addresses.of_interface("x" * 16)
