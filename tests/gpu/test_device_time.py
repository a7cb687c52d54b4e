"""Own time of a step on a real device: what comes before the last collective, and nothing after."""

import time
from collections.abc import Callable

import pytest

from fabric_train.rank.device_time import DeviceTime
from lab.gpu.machine import look
from lab.gpu.plan import missing

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def test_what_the_device_does_after_the_last_collective_is_not_counted() -> None:
    reason = missing(look())
    if reason:
        pytest.skip(reason)
    import torch

    tensor = torch.randn(4096, 4096, device="cuda")
    device = DeviceTime(
        lambda: torch.cuda.Event(enable_timing=True), torch.cuda.is_current_stream_capturing
    )

    def work(times: int) -> None:
        for _ in range(times):
            torch.mm(tensor, tensor)

    def measured(before: int, after: int) -> float | None:
        device.gate_left()
        work(before)
        device.started([tensor])
        work(after)
        torch.cuda.synchronize()
        return device.seconds()

    def lasts(act: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        began = time.monotonic()
        act()
        torch.cuda.synchronize()
        return time.monotonic() - began

    assert measured(100, 0) is None, "the first step has no begin"
    expected = lasts(lambda: work(100))
    for after in (0, 300):
        assert measured(100, after) == pytest.approx(expected, rel=0.2)
