"""Whether probes watch each link: states, times, words."""

import errno

from hypothesis import given
from hypothesis import strategies as st

from fabricd.links.probe_state import ProbedLink, ProbeWatch
from telemetry.events import ProbeState as P

SEC = 10**9
START = 5 * SEC


def link(netdev="rail0", **known):
    usual = {
        "rail": 0, "address": "10.0.0.1", "port": 9200, "paths": 3, "usable": True,
        "present": True, "bound": True, "heard_ns": START,
    }  # fmt: skip
    return ProbedLink(netdev, **(usual | known))


class Watched:
    def __init__(self):
        self.watch = ProbeWatch()
        self.now = START
        self.told = []

    def run(self, seconds, prober=True, refusal="", **known):
        """Look twice a second; what was told meanwhile."""
        before = len(self.told)
        for _ in range(round(2 * seconds)):
            self.now += SEC // 2
            self.told += self.watch.update(
                [link(**known)], self.now, prober=prober, refusal=refusal
            )
        return [change.state for change in self.told[before:]]

    @property
    def state(self):
        return self.watch.state("rail0")

    @property
    def unwatched(self):
        return self.watch.unwatched("rail0", self.now)


def test_a_link_that_is_heard_needs_no_row():
    watched = Watched()
    assert watched.run(60) == []
    assert (watched.state, watched.unwatched) == (P.HEARD, "")


def test_never_heard_is_told_after_thirty_seconds_with_carrier():
    watched = Watched()
    assert watched.run(29, heard_ns=0) == []
    assert watched.state is None
    assert watched.run(3, heard_ns=0) == [P.NEVER_HEARD]
    assert watched.unwatched == "never heard for 32 s (from 10.0.0.1), carrier only"
    several = {"address": "fd00::1", "address_note": "has fd00::1, fd00::2: fd00::1 is used"}
    watched.run(1, heard_ns=0, **several)
    assert watched.unwatched == (
        "never heard for 32 s (from fd00::1; rail0 has fd00::1, fd00::2: fd00::1 is used: "
        "set address in [[links]]), carrier only"
    )
    assert watched.run(1) == [P.HEARD]
    assert watched.unwatched == ""


def test_without_carrier_nothing_is_expected_to_be_heard():
    watched = Watched()
    assert watched.run(120, heard_ns=0, usable=False) == []
    assert watched.run(20, heard_ns=0) == []
    assert watched.run(20, heard_ns=0) == [P.NEVER_HEARD]
    assert watched.run(20, heard_ns=0, usable=False) == [], "a carrier that goes makes it no better"


def test_a_restarted_prober_that_hears_nothing_is_told():
    """A black hole that begins while the prober restarts is seen by no probe."""
    watched = Watched()
    watched.run(10)
    assert watched.run(25, heard_ns=0) == []
    assert watched.state is P.HEARD
    assert watched.run(10, heard_ns=0) == [P.NEVER_HEARD]


def test_an_unbound_socket_is_told_with_its_reason_and_so_is_its_return():
    watched = Watched()
    watched.run(10)
    assert watched.run(0.5, bound=False, bind_errno=errno.EADDRINUSE, heard_ns=0) == []
    assert watched.run(2, bound=False, bind_errno=errno.EADDRINUSE, heard_ns=0) == [P.UNBOUND]
    assert "another process holds UDP port 9200 of 10.0.0.1" in watched.unwatched
    assert watched.run(1, bound=False, bind_errno=errno.EADDRNOTAVAIL, heard_ns=0) == []
    assert "Cannot assign requested address" in watched.unwatched
    assert watched.run(1, heard_ns=0) == [None]
    assert watched.told[-1].reason == "probed again, nothing heard yet"
    assert watched.run(1) == [P.HEARD]
    assert (watched.told[-1].reason, watched.unwatched) == ("probes are heard", "")


def test_an_interface_that_is_down_has_no_address_to_bind_to():
    watched = Watched()
    watched.run(10)
    assert watched.run(60, bound=False, bind_errno=errno.EADDRNOTAVAIL, usable=False) == []
    assert watched.state is P.HEARD


def test_a_link_that_is_not_probed_says_why():
    for known, why in (
        ({"paths": 0, "address": None}, "no address"),
        (
            {"paths": 0, "address": None, "address_note": "fd00::2 is tentative"},
            "no address: fd00::2 is tentative",
        ),
        ({"paths": 0}, "no peer on its rail"),
        ({"present": False}, "no device"),
        ({"prober": False}, "no prober"),
        (
            {"prober": False, "refusal": "links[0].netdev: 1 to 15"},
            "the prober refuses the configuration: links[0].netdev: 1 to 15",
        ),
    ):
        watched = Watched()
        assert watched.run(9, **known) == [], "a start or a restart takes less"
        assert watched.run(3, **known) == [P.OFF]
        assert f"({why})" in watched.unwatched
        assert watched.run(1) == [P.HEARD]


def test_a_link_that_lost_its_address_is_unbound_while_peers_and_carrier_are_there():
    """No key ``address``: without the device's own there is no path, and so nothing is silent."""
    watched = Watched()
    watched.run(10)
    lost = {"paths": 0, "address": None, "peers": True, "bound": False, "heard_ns": 0}
    assert watched.run(9, **lost) == [], "a renewed address takes less"
    assert watched.run(3, **lost) == [P.UNBOUND]
    assert watched.unwatched == "probe socket not bound for 12 s (no address), carrier only"
    assert watched.run(2, **lost | {"usable": False}) == [P.OFF], "down, it has none to lose"
    assert watched.run(2, **lost | {"peers": False}) == []
    assert watched.run(2, **lost) == [P.UNBOUND]
    assert watched.run(1, peers=True) == [P.HEARD]


def test_a_link_that_is_taken_out_of_the_configuration_is_forgotten():
    watched = Watched()
    watched.run(12, prober=False)
    watched.watch.update([link("rail1")], watched.now, prober=True)
    assert watched.state is None


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "bound": st.booleans(), "usable": st.booleans(), "present": st.booleans(),
                "heard_ns": st.sampled_from([0, START]), "paths": st.sampled_from([0, 2]),
                "bind_errno": st.sampled_from([0, errno.EADDRINUSE]),
                "seconds": st.integers(1, 40), "prober": st.booleans(),
            }
        ),
        max_size=12,
    )
)  # fmt: skip
def test_heard_is_said_of_links_that_are_heard_and_nothing_else_lasts(steps):
    """However it came about: 31 s of a condition lead to its state."""
    watched = Watched()
    for step in steps:
        watched.run(**step)
    watched.run(31, heard_ns=0)
    assert watched.state is P.NEVER_HEARD
    watched.run(31, bound=False)
    assert watched.state is P.UNBOUND
    watched.run(31, paths=0)
    assert watched.state is P.OFF
    watched.run(0.5)
    assert (watched.state, watched.unwatched) == (P.HEARD, "")
