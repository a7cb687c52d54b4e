"""torchrun's names in the environment of ranks and spares, and the places of a host's processes."""

import pytest
from on_demand import on_demand

from fabric_train.agent.places import Places
from fabric_train.messages.process import Assignment
from fabric_train.messages.rank_environment import environment_of

torchrun = on_demand("fabric_train.rank.torchrun", needs="torch")


def places(count):
    made = Places()
    assert [made.enter(f"p{i}") for i in range(count)] == list(range(count))
    return made


def test_a_process_keeps_its_place_also_with_a_rank():
    host = places(5)  # four ranks and a spare
    host.leave("p2")
    assert host.take("p4") == 4
    assert host.enter("p5") == 2
    assert host.take("p5") == 2
    assert host.take("p1") == 1


def test_a_spare_that_waits_for_its_rank_gets_the_place_of_who_is_gone():
    host = places(6)
    for spare in ("p4", "p5"):
        host.wait(spare)
    host.leave("p2")
    host.leave("p0")
    assert host.enter("p6") == 0, "no rank, and no spare that has used its place, has it"
    host.wait("p6")
    assert [host.take(one) for one in ("p5", "p4", "p6")] == [0, 2, 4]
    assert host.take("p5") == 0, "a later generation"


def test_processes_that_nobody_knows_have_no_place():
    host = places(1)
    host.wait("p9")
    host.leave("p9")
    assert host.take("p9") is None


@pytest.mark.parametrize("events", range(20))
def test_no_two_live_processes_share_a_place(events):
    import random

    draw, host, live, unused = random.Random(events), Places(), {}, set()
    for number in range(300):
        what = draw.choice(("enter", "enter late", "take", "leave"))
        if what.startswith("enter") or not live:
            live[f"p{number}"] = host.enter(f"p{number}")
            if what == "enter late":
                host.wait(f"p{number}")
                unused.add(f"p{number}")
        else:
            one = draw.choice(sorted(live))
            if what == "take":
                live[one] = host.take(one)
                unused.discard(one)
            else:
                host.leave(one)
                del live[one]
                unused.discard(one)
        used = [place for one, place in live.items() if one not in unused]
        assert len(used) == len(set(used))


def test_a_process_starts_with_what_torchrun_sets_but_its_rank():
    outer = {"HOME": "/root", "RANK": "7", "GROUP_RANK": "3", "MASTER_ADDR": "10.0.0.1",
             "WORLD_SIZE": "1"}  # fmt: skip
    assert environment_of(outer, 8, 4, 2) == {
        "HOME": "/root", "OMP_NUM_THREADS": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4",
        "LOCAL_RANK": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip
    assert environment_of({"OMP_NUM_THREADS": "3"}, 2, 2, 0)["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in environment_of({}, 1, 1, 0)


def test_a_rank_is_told_when_there_is_one_and_again_when_it_changes():
    found = {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "4", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    torchrun.tell_rank(Assignment(1, None, 8, "h0"), found)
    assert "RANK" not in found
    torchrun.tell_rank(Assignment(2, 6, 8, "h0", local_rank=2, master="10.0.0.9:7000"), found)
    assert found == {
        "RANK": "6", "GROUP_RANK": "1", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4",
        "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "7000",
    }  # fmt: skip
    torchrun.tell_rank(Assignment(3, 1, 8, "h0"), found)
    assert (found["RANK"], found["GROUP_RANK"], found["LOCAL_RANK"]) == ("1", "0", "2")
    assert found["MASTER_ADDR"] == "10.0.0.9"
