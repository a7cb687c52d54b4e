"""Which lost paths the fault matrix lays to a machine that did not run a rank."""

from types import SimpleNamespace

import pytest

from lab.matrix.daemons import PathsLostError, _undisturbed
from telemetry.statspage import PathDownReason, StatsEvent, StatsEventKind


def down(time_ns, reason):
    return StatsEvent(0, time_ns, 1, StatsEventKind.PATH_DOWN, 0, 0, int(reason))


class Rank:
    """One whose page shows its events from the ``look``-th look on."""

    def __init__(self, rank, *events, look=1):
        self.rank, self.events, self.look, self.looks = rank, events, look, 0

    def since(self, kind, since_ns):
        assert kind is StatsEventKind.PATH_DOWN
        self.looks += 1
        return [e for e in self.events if self.looks >= self.look and e.time_ns >= since_ns]


def lost(*ranks, seconds=60.0):
    with pytest.raises(PathsLostError) as caught:
        _undisturbed(SimpleNamespace(ranks=ranks), 10, seconds)
    return caught.value


NO_ACK, TOLD = PathDownReason.NO_ACK, PathDownReason.PEER_TOLD


def test_no_loss_since_then_is_none():
    _undisturbed(SimpleNamespace(ranks=[Rank(0), Rank(1, down(9, NO_ACK))]), 10)


@pytest.mark.parametrize("told", [TOLD, PathDownReason.SOCKET_ERROR])
def test_the_end_that_gave_the_path_up_is_waited_for(told):
    """The other end's page may be read first."""
    error = lost(Rank(0, down(30, told)), Rank(1, down(20, NO_ACK), look=4))
    assert error.by_silence
    assert str(error) == (
        "2 paths were given up: rank 1 rail 0-0: NO_ACK 0.0 ms later; "
        f"rank 0 rail 0-0: {told.name} 0.0 ms later"
    )


@pytest.mark.parametrize("reason", [PathDownReason.STEER_PAGE, PathDownReason.REHASH])
def test_another_cause_is_no_silence(reason):
    assert not lost(Rank(0, down(30, TOLD)), Rank(1, down(20, reason), look=3)).by_silence


def test_a_hint_later_on_is_no_silence_either():
    events = down(20, NO_ACK), down(40, PathDownReason.STEER_PAGE)
    assert not lost(Rank(0, *events)).by_silence


@pytest.mark.parametrize("told", [TOLD, PathDownReason.SOCKET_ERROR])
def test_a_cause_that_nobody_says_is_no_silence(told):
    assert not lost(Rank(0, down(30, told)), Rank(1), seconds=0.05).by_silence
