"""What a GPU run plans, why it is skipped, and how its results are compared."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab.gpu.compare import Row, compare
from lab.gpu.lines import count
from lab.gpu.machine import look
from lab.gpu.plan import FORCED, PROTOCOLS, STEPS, WORLD, Machine, environment, missing, seed
from lab.gpu.run import Outcome


def outcome(*rows: list[Row]) -> Outcome:
    return Outcome(tuple(map(tuple, rows)), (0, 0), 0, 0, through_plugin=True)


def test_wrong_sums_are_counted_and_the_runs_in_them_named_once():
    end: Row = {"type": "end", "rounds": 8, "wrong": 2}
    wrong: Row = {"type": "wrong", "sum": 3, "runs": [[60, 16], [120, 14], [300, 16]]}
    found = count(outcome([end | {"wrong": 0}], [wrong, wrong, end]), "FABRIC", "LL128", 5.0, True)
    assert (found.sums, found.wrong, found.lengths) == (8, (0, 2), (14, 16))
    with pytest.raises(RuntimeError, match="rank 1 did not end"):
        count(outcome([end], [wrong]), "FABRIC", "LL128", 5.0, True)


WHOLE = Machine(
    root=True,
    tools={"ip": True, "nft": True},
    plugin=Path("/p.so"),
    torch="2.9",
    cuda=True,
    nccl=True,
)


def test_a_whole_machine_lacks_nothing():
    assert missing(WHOLE) == ""


@pytest.mark.parametrize(
    ("lack", "reason"),
    [
        ({"torch": ""}, "PyTorch cannot be imported"),
        ({"cuda": False}, "PyTorch 2.9 sees no CUDA device"),
        ({"nccl": False}, "was built without NCCL"),
        ({"root": False}, "not root"),
        ({"tools": {"ip": True, "nft": False}}, "not installed: nft"),
        ({"plugin": None}, "the plugin is not built"),
    ],
)
def test_what_is_missing_is_named(lack: dict[str, object], reason: str):
    assert reason in missing(replace(WHOLE, **lack))


def test_all_reasons_are_given_at_once():
    nothing = Machine(
        root=False, tools={"ip": False}, plugin=None, torch="", cuda=False, nccl=False
    )
    assert missing(nothing).count(";") == 3


def test_a_python_without_torch_is_no_error(tmp_path: Path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for python in (str(broken), str(tmp_path / "none")):
        machine = look(python)
        assert machine.torch == ""
        assert "PyTorch cannot be imported" in missing(machine)


@pytest.mark.patient
def test_the_command_says_why_it_cannot_run():
    reason = missing(look())
    if not reason:
        pytest.skip("this machine has all that a GPU run needs")
    ran = subprocess.run(
        [sys.executable, "-m", "lab.gpu"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert reason in ran.stderr


def test_the_ranks_are_two_hosts_on_one_gpu():
    both = [
        environment(rank=rank, protocol="LL", plugin=Path("/p.so"), job="j")
        for rank in range(WORLD)
    ]
    assert both[0]["NCCL_HOSTID"] != both[1]["NCCL_HOSTID"]
    assert both[0]["CUDA_VISIBLE_DEVICES"] == both[1]["CUDA_VISIBLE_DEVICES"]
    assert both[0]["NCCL_NET_PLUGIN"] == "/p.so"
    assert both[0]["NCCL_PROTO"] == "LL"
    assert {*PROTOCOLS, FORCED} == {"Simple", "LL", "LL128"}


def test_every_operation_small_and_large_with_inputs_of_its_own():
    assert {step.operation for step in STEPS} == {"all_reduce", "all_to_all", "send_recv"}
    numbers = {
        seed(round_number, step, rank)
        for round_number in range(3)
        for step in range(len(STEPS))
        for rank in range(WORLD)
    }
    assert len(numbers) == 3 * len(STEPS) * WORLD


def rows(rounds: int, inputs: int, *, change: tuple[int, int] | None = None) -> list[Row]:
    made: list[Row] = [
        {
            "type": "result",
            "round": number,
            "step": step,
            "sha256": "other" if (number, step) == change else f"{number % inputs} {step}",
        }
        for number in range(rounds)
        for step in range(len(STEPS))
    ]
    return [*made, {"type": "end", "rounds": rounds}]


def test_equal_results_of_repeated_inputs():
    verdict = compare([rows(3, 3)] * 2, [rows(10, 3)] * 2, rounds=3)
    assert verdict.wrong == ()
    assert verdict.compared == 2 * 10 * len(STEPS)


def test_one_other_bit_is_found():
    disturbed = [rows(10, 3), rows(10, 3, change=(8, 5))]
    verdict = compare([rows(3, 3)] * 2, disturbed, rounds=3)
    assert verdict.wrong == (f"rank 1: round 8, {STEPS[5].name}: other bits",)


def test_ranks_that_differ_after_a_sum_are_found():
    verdict = compare([rows(3, 3), rows(3, 3, change=(0, 0))], [rows(3, 3)] * 2, rounds=3)
    assert any("the ranks differ" in text for text in verdict.wrong)


def test_a_run_that_did_not_end_or_lost_a_result_is_wrong():
    whole = rows(3, 3)
    for cut, reason in (
        (whole[:-1], "disturbed, rank 0: did not end"),
        (whole[1:], f"disturbed, rank 0: no result of round 0, {STEPS[0].name}"),
        ([{"type": "error", "text": "boom"}], "disturbed, rank 0: boom"),
    ):
        assert reason in compare([whole] * 2, [cut, whole], rounds=3).wrong
    assert "nothing was compared" in compare([whole] * 2, [[], []], rounds=3).wrong
