"""When a process gives its rank-local state to its agent, and which one."""

import threading

import pytest
from on_demand import on_demand

torch = on_demand("torch")
hand_over = on_demand("fabric_train.rank.hand_over", needs="torch")
rank_local = on_demand("fabric_train.state.rank_local", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
step_start = on_demand("fabric_train.state.step_start", needs="torch")


class Link:
    """An agent that stores at once, and says so when it is asked."""

    def __init__(self, store_takes_time=True):
        self.store_takes_time = store_takes_time
        self.sent, self.waited, self.late = [], [], []

    def store(self, rank, step, body, *, late=False):
        self.sent.append((rank, step, body))
        self.late.append(late)
        return len(self.sent)

    def wait_stored(self, number):
        self.waited.append(number)


class Process:
    def __init__(self, link):
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(self.net.parameters())
        state = replicated.ReplicatedState({"model": self.net, "optimizer": optimizer})
        self.start, self.link = step_start.StepStart(state, rank_local.LocalStates({})), link
        self.hand_over = hand_over.HandOver(link, self.start)

    def forward(self):
        self.start.capture()
        self.hand_over.begin()
        self.net(torch.randn(4, 2))


@pytest.fixture
def process():
    return Process(Link())


def test_a_state_is_sent_when_gradients_are_reduced_and_not_again_at_the_gate(process):
    process.forward()
    for _ in range(3):
        process.hand_over.send_early(1, 8)
    process.hand_over.complete(1, 8)
    assert len(process.link.sent) == 1
    assert process.link.waited == [1]


@pytest.mark.parametrize("change", [
    lambda _: torch.rand(1),
    lambda process: process.net[1].running_mean.add_(1),
])  # fmt: skip
def test_a_state_that_has_changed_since_is_sent_again(process, change):
    process.forward()
    process.hand_over.send_early(1, 8)
    with torch.no_grad():
        change(process)
    process.hand_over.complete(1, 8)
    (_, _, early), (rank, step, last) = process.link.sent
    assert (rank, step) == (1, 8)
    assert early != last
    assert process.link.waited == [2]


def test_another_thread_sends_nothing(process):
    process.forward()
    thread = threading.Thread(target=process.hand_over.send_early, args=(1, 8))
    thread.start()
    thread.join()
    assert process.link.sent == []
    process.hand_over.complete(1, 8)
    assert process.link.waited == [1]


def test_what_costs_no_time_is_done_at_the_gate_alone():
    process = Process(Link(store_takes_time=False))
    process.forward()
    process.hand_over.send_early(1, 8)
    assert process.link.sent == []
    process.hand_over.complete(1, 8)
    assert len(process.link.sent) == 1


def test_a_random_number_between_the_gate_and_the_next_step_is_refused(process):
    process.forward()
    process.hand_over.complete(1, 8)
    process.start.capture()
    process.forward()
    process.hand_over.complete(1, 9)
    torch.rand(1)
    with pytest.raises(step_start.DrawnError, match="between optimizer"):
        process.start.capture()


def test_an_attempt_that_is_taken_back_leaves_what_it_found(process):
    process.start.capture()
    before = [one.clone() for one in process.net.buffers()], torch.get_rng_state()
    process.hand_over.begin()
    process.net(torch.randn(4, 2))
    process.hand_over.complete(1, 8)
    process.start.forget_next()
    process.start.restore()
    after = [one.clone() for one in process.net.buffers()], torch.get_rng_state()
    assert all(map(torch.equal, before[0], after[0]))
    assert torch.equal(before[1], after[1])
    process.start.capture()


def test_what_the_gate_has_not_seen_is_sent_at_the_start_of_the_next_step(process):
    process.forward()
    process.hand_over.complete(1, 8)
    with torch.no_grad():
        process.net[1].running_mean.add_(1)
    process.start.capture()
    process.hand_over.store_late(1, 8)
    assert process.link.late == [False, True]
    (_, _, gate), (rank, step, late) = process.link.sent
    assert (rank, step) == (1, 8)
    assert gate != late
    assert process.link.waited == [1]


def test_nothing_is_sent_again_where_the_gate_has_seen_it_all(process):
    process.forward()
    process.hand_over.complete(1, 8)
    process.start.capture()
    process.hand_over.store_late(1, 8)
    assert process.link.late == [False]
