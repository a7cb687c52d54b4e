"""What is kept of observations as they come is what all of them together say."""

from hypothesis import given, settings
from hypothesis import strategies as st

from compute.decide.observers import HostView, Observers
from telemetry.messages.documents import HostObservations, HostStatus, SilentHost

NAMES = ["a", "b", "c", "d", "e"]
names = st.sampled_from(NAMES)
rows = st.builds(SilentHost, host=names, rails=st.integers(0, 2), rails_probed=st.integers(0, 2))
observations = st.builds(
    HostObservations, silent=st.lists(rows, max_size=4), heard=st.lists(names, max_size=4),
    abstains=st.booleans(), fences=st.lists(st.sampled_from(["f1", "f2"]), max_size=2),
)  # fmt: skip
statuses = st.builds(HostStatus, online=st.booleans(), intended=st.booleans())
views = st.builds(HostView, st.none() | statuses, st.none() | observations)
updates = st.lists(st.tuples(names, st.none() | views), max_size=12)


def all_of(known):
    return (
        {host: known.open_peers(host) for host in NAMES},
        {host: known.votes(host, NAMES[:3]) for host in NAMES},
        known.troubled,
        {fence: known.acknowledged(fence) for fence in ("f1", "f2")},
        len(known),
    )


@settings(max_examples=200, deadline=None)
@given(updates)
def test_what_is_kept_is_what_the_newest_views_say(steps):
    known, newest = Observers(), {}
    for host, view in steps:
        before, version = all_of(known), known.version
        changed = known.update(host, view)
        newest[host] = view
        anew = Observers()
        for name, one in newest.items():
            if one is not None:
                anew.update(name, one)
        assert all_of(known) == all_of(anew)
        # What is said to change nothing changes nothing.
        assert changed or all_of(known) == before
        assert known.version > version or all_of(known)[:3] == before[:3]


def test_a_longer_gap_of_who_abstains_is_no_news():
    known = Observers()
    view = HostView(None, HostObservations(silent=[], heard=["b"], abstains=True, gap_ms=1.0))
    assert known.update("a", view)
    longer = HostObservations(silent=[], heard=["b"], abstains=True, gap_ms=9.0)
    assert not known.update("a", HostView(None, longer))
