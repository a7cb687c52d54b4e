"""What the failover benchmark counts as a stall, on made-up events of the stats pages."""

from bench.follow import HostEvent, stalls_ns
from telemetry.statspage import StatsEvent, StatsEventKind

START, END = 1_000, 9_000
KIND = StatsEventKind


def event(t_ns, kind, *, host="h0", comm=1, local=2, remote=2, detail=0):
    made = StatsEvent(
        index=0,
        time_ns=t_ns,
        comm=comm,
        kind=kind,
        local_rail=local,
        remote_rail=remote,
        detail=detail,
    )
    return HostEvent(host, made)


def stalls(*events):
    return stalls_ns(events, START, END, lambda host, path: (host, path) == ("h0", 2 * 8 + 2))


def test_until_the_first_byte_on_a_survivor():
    assert stalls(
        event(1_300, KIND.FIRST_BYTE, local=3, remote=3, detail=18),
        event(1_100, KIND.PATH_DOWN),
        event(1_200, KIND.FENCE_DONE, detail=4096),
    ) == {("h0", 1): 300}


def test_until_the_answer_of_the_fence_when_nothing_was_left_to_send():
    assert stalls(event(1_100, KIND.PATH_DOWN), event(1_250, KIND.FENCE_DONE)) == {("h0", 1): 250}


def test_the_answer_of_the_fence_is_no_end_while_bytes_are_left_to_resend():
    assert stalls(event(1_100, KIND.PATH_DOWN), event(1_250, KIND.FENCE_DONE, detail=4096)) == {
        ("h0", 1): END - START
    }


def test_a_second_loss_of_the_path_is_not_the_first_one_lasting():
    assert stalls(
        event(1_100, KIND.PATH_DOWN),
        event(1_250, KIND.FENCE_DONE),
        event(7_000, KIND.PATH_DOWN),
        event(7_100, KIND.FIRST_BYTE, local=3, remote=3, detail=18),
    ) == {("h0", 1): 250}


def test_one_that_never_went_on_counts_until_the_fault_ended():
    before = event(500, KIND.FENCE_DONE)  # so it is a sending end
    assert stalls(before, event(1_100, KIND.PATH_DOWN)) == {("h0", 1): END - START}


def test_receiving_ends_other_paths_and_other_hosts_do_not_count():
    assert (
        stalls(
            event(1_100, KIND.PATH_DOWN),  # no fence of its own, ever: the receiving end
            event(1_100, KIND.PATH_DOWN, comm=2, local=1, remote=1),
            event(1_200, KIND.FENCE_DONE, comm=2, local=1, remote=1),
            event(1_100, KIND.PATH_DOWN, host="h3", comm=3),
            event(1_200, KIND.FENCE_DONE, host="h3", comm=3),
            event(1_200, KIND.ALL_PATHS_DOWN, comm=2, local=None, remote=None),
        )
        == {}
    )
