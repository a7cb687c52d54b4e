"""Own time on a device: a stream in virtual time, of which the host runs ahead."""

from types import SimpleNamespace

import pytest

from fabric_train.rank.device_time import DeviceTime

ON_DEVICE, ON_HOST = SimpleNamespace(is_cuda=True), SimpleNamespace(is_cuda=False)


class Stream:
    """Works off what it is given, in order; an event happens in between."""

    def __init__(self):
        self.given_s, self.done_s, self.capturing, self.made = 0.0, 0.0, False, 0

    def event(self):
        stream = self
        stream.made += 1

        class Event:
            at = None

            def record(self):
                self.at = stream.given_s

            def elapsed_time(self, other):
                if None in (self.at, other.at) or max(self.at, other.at) > stream.done_s:
                    raise RuntimeError("Both events must be completed")
                return 1000 * (other.at - self.at)

        return Event()


@pytest.fixture
def stream():
    return Stream()


@pytest.fixture
def device(stream):
    return DeviceTime(stream.event, lambda: stream.capturing)


def step(device, stream, *, backward, waiting, buckets=3, tensors=ON_DEVICE):
    device.gate_left()
    for _ in range(buckets):
        stream.given_s += backward / buckets
        device.started([tensors])
    stream.given_s += waiting  # it waits for the reductions only now
    stream.done_s = stream.given_s
    return device.seconds()


def test_what_comes_after_the_last_gradients_is_not_its_own(device, stream):
    assert step(device, stream, backward=2.0, waiting=1.0) is None, "the first step has no begin"
    assert step(device, stream, backward=2.0, waiting=1.0) == pytest.approx(2.0)
    assert step(device, stream, backward=2.3, waiting=0.0) == pytest.approx(2.3)


def test_lists_of_tensors_are_looked_into(device, stream):
    device.started([[ON_DEVICE, ON_DEVICE]])
    device.started([[]])
    device.started([])
    assert stream.made == 2


def test_a_job_on_hosts_never_asks_for_a_device(device, stream):
    for _ in range(3):
        assert step(device, stream, backward=2.0, waiting=1.0, tensors=ON_HOST) is None
    assert stream.made == 0


def test_a_step_without_a_collective_on_the_device_is_not_measured(device, stream):
    step(device, stream, backward=2.0, waiting=1.0)
    step(device, stream, backward=2.0, waiting=1.0)
    assert step(device, stream, backward=2.0, waiting=1.0, tensors=ON_HOST) is None


def test_nothing_is_recorded_while_a_graph_is_captured(device, stream):
    step(device, stream, backward=2.0, waiting=1.0)
    stream.capturing = True
    assert step(device, stream, backward=2.0, waiting=1.0) is None


def test_what_the_device_has_not_done_yet_is_not_measured(device, stream):
    step(device, stream, backward=2.0, waiting=1.0)
    device.gate_left()
    stream.given_s += 5.0
    device.started([ON_DEVICE])
    assert device.seconds() is None
