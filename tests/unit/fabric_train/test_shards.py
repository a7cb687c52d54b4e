"""Shards without replicas: what a buddy keeps of them rebuilds them bit by bit, or is refused."""

import dataclasses
import pickle

import pytest
import shard_world as worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from on_demand import on_demand

from fabric_train.rules.agreement import DisagreementError
from fabric_train.rules.buddies import Room, buddies, check_room, wards
from fabric_train.rules.step_rule import RankReport, UnrecoverableError, plan_recovery

torch = on_demand("torch")
entry = on_demand("fabric_train.shards.entry", needs="torch")
host_memory = on_demand("fabric_train.shards.host_memory")
keeper = on_demand("fabric_train.shards.keeper", needs="torch")
log = on_demand("fabric_train.shards.log", needs="torch")
plain_values = on_demand("fabric_train.state.plain_values", needs="torch")
proof = on_demand("fabric_train.shards.proof", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
units = on_demand("fabric_train.shards.units", needs="torch")

MAKERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.1),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, 0.1, amsgrad=True, foreach=True),
    "Nesterov": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True),
    "plain": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, 0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 0.1, centered=True),
}


def world(make, *, count=3, renew=3, buddies=1):
    options = keeper.GradientLog(buddies=buddies, renew_steps=renew)
    ranks = [worlds.Rank(rank, MAKERS[make], options) for rank in range(count)]
    worlds.meet(ranks, 0)
    return ranks


def train(ranks, first, steps):
    for step in range(first, first + steps):
        for one in ranks:
            one.keeper.settle(step)
            one.give(step)
        assert worlds.exchange(ranks, step) == {}
        for one in ranks:
            one.keeper.voted(one.state)
            one.step()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("make", [*MAKERS])
def test_a_lost_rank_is_rebuilt_from_its_buddy_bit_by_bit(make):
    ranks = world(make)
    for step in range(8):
        train(ranks, step, 1)
        fresh = worlds.Rank(1, MAKERS[make], ranks[0].keeper.options, seed=9)
        assert ranks[2].keeper.keeps()[1][1] == step + 1
        assert worlds.rebuild(ranks, 1, 2, step + 1, fresh) == {}
        assert same(fresh.values(), ranks[1].values())
        assert fresh.optimizer.param_groups[0]["lr"] == 0.1


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_whatever_happens_in_between_what_is_rebuilt_is_what_was_lost(data):
    make = data.draw(st.sampled_from([*MAKERS]))
    ranks = world(make, renew=data.draw(st.integers(1, 5)), buddies=data.draw(st.integers(1, 2)))
    for step in range(data.draw(st.integers(1, 8))):
        what = data.draw(
            st.sampled_from(["step", "again", "skip", "lr", "clamp", "frozen", "lost"])
        )
        for one in ranks:
            one.give(step)
            if what == "lr":
                one.optimizer.param_groups[0]["lr"] /= 2
            if what == "clamp":
                with torch.no_grad():
                    one.model[0].weight.clamp_(-0.1, 0.1)
            if what == "frozen":
                one.model[1].weight.grad = None
        if what == "again":  # the vote failed: gradients of another batch
            assert worlds.exchange(ranks, step) == {}
            for one in ranks:
                one.give(step + 77)
        assert worlds.exchange(ranks, step) == {}
        for one in ranks:
            one.keeper.voted(one.state)
            if what != "skip":
                one.step()
        if what == "lost":
            lost = data.draw(st.integers(0, 2))
            before = ranks[lost].values()
            source = (lost + 1) % 3
            fresh = worlds.Rank(lost, MAKERS[make], ranks[0].keeper.options, seed=step + 1)
            assert worlds.rebuild(ranks, lost, source, step + 1, fresh) == {}
            assert same(fresh.values(), before)
            ranks[lost] = fresh
            worlds.meet(ranks, step + 1)
    train(ranks, step + 1, 1)  # whose buddy is new has given it all by then
    for lost in range(3):
        fresh = worlds.Rank(lost, MAKERS[make], ranks[0].keeper.options, seed=50)
        assert worlds.rebuild(ranks, lost, (lost + 1) % 3, step + 2, fresh) == {}
        assert same(fresh.values(), ranks[lost].values())


def test_with_two_buddies_the_second_one_can_rebuild_it_too():
    ranks = world("AdamW", buddies=2)
    train(ranks, 0, 5)
    for source in (1, 2):
        fresh = worlds.Rank(0, MAKERS["AdamW"], ranks[0].keeper.options, seed=9)
        assert worlds.rebuild(ranks, 0, source, 5, fresh) == {}
        assert same(fresh.values(), ranks[0].values())


def rebuilt(ranks, lost, source, step, make="AdamW"):
    fresh = worlds.Rank(lost, MAKERS[make], ranks[0].keeper.options, seed=99)
    assert worlds.rebuild(ranks, lost, source, step, fresh) == {}
    return same(fresh.values(), ranks[lost].values())


def test_what_a_loop_writes_beside_the_optimizer_is_copied_with_the_next_step():
    ranks = world("AdamW", renew=5)
    train(ranks, 0, 3)
    for step in range(3, 9):
        with torch.no_grad():
            for one in ranks:
                [*one.model.parameters()][step % 3].mul_(0.5)
        train(ranks, step, 1)
        assert rebuilt(ranks, 0, 1, step + 1)


def test_of_a_step_that_is_run_again_the_last_gradients_count():
    ranks = world("AdamW", renew=5)
    train(ranks, 0, 3)
    for one in ranks:
        one.give(3)
    assert worlds.exchange(ranks, 3) == {}
    for one in ranks:
        one.give(4)
        one.model[1].weight.grad = None
    assert worlds.exchange(ranks, 3) == {}
    for one in ranks:
        one.step()
    assert rebuilt(ranks, 0, 1, 4)


def test_a_second_buddy_that_is_new_gets_all_too():
    ranks = world("AdamW", buddies=2)
    train(ranks, 0, 4)
    fresh = worlds.Rank(2, MAKERS["AdamW"], ranks[0].keeper.options, seed=9)
    assert worlds.rebuild(ranks, 2, 0, 4, fresh) == {}
    ranks[2] = fresh
    worlds.meet(ranks, 4)
    train(ranks, 4, 1)
    assert rebuilt(ranks, 0, 1, 5)
    assert rebuilt(ranks, 0, 2, 5)


@pytest.mark.parametrize("place", range(4))
def test_what_is_broken_off_or_corrupt_leaves_the_log_as_it_was(place):
    ranks = world("AdamW")
    train(ranks, 0, 3)
    known = ranks[1].keeper.keeps()
    for harm in (
        lambda sent: RuntimeError("connection closed"),
        lambda sent: sent.bitwise_xor(torch.tensor(1, dtype=sent.dtype)),
    ):
        for one in ranks:
            one.give(3)

        def harmed(source, _to, at, sent, harm=harm):
            return harm(sent) if (source, at) == (0, place) else sent

        network = worlds.Network(3, harmed)
        raised = worlds.exchange(ranks, 3, network)
        if place < 3:  # head, chunk, sums
            assert raised
            assert ranks[1].keeper.keeps() == known
        else:
            assert raised == {}
    fresh = worlds.Rank(0, MAKERS["AdamW"], ranks[0].keeper.options, seed=9)
    assert worlds.rebuild(ranks, 0, 1, 3, fresh) == {}
    assert same(fresh.values(), ranks[0].values())


def test_a_new_buddy_gets_all_with_the_next_step():
    ranks = world("AdamW")
    train(ranks, 0, 4)
    fresh = worlds.Rank(1, MAKERS["AdamW"], ranks[0].keeper.options, seed=9)
    worlds.rebuild(ranks, 1, 2, 4, fresh)
    ranks[1] = fresh  # rank 0's buddy: it keeps nothing yet
    worlds.meet(ranks, 4)
    assert 0 not in ranks[1].keeper.keeps()
    train(ranks, 4, 1)
    assert ranks[1].keeper.keeps()[0] == (4, 5)


def test_memory_of_gradients_is_used_again_and_stays_as_promised():
    ranks = world("AdamW", renew=4)
    need, _ = ranks[0].keeper.need()
    sizes = []
    for step in range(24):
        train(ranks, step, 1)
        sizes.append(ranks[1].keeper.size())
    assert max(sizes) <= need
    assert max(sizes) > need * 0.8
    assert sizes[8:12] == sizes[12:16] == sizes[20:24]


def test_a_step_that_uses_more_than_the_gradient_is_found():
    ranks = world("AdamW")

    def steps():
        for step in range(8):
            train(ranks, step, 1)
            for one in ranks:
                one.model[0].weight.data.clamp_(-0.01, 0.01)  # past autograd's versions

    with pytest.raises(proof.NotRepeatedError, match=r"repeated from its gradient.*model/0.weight"):
        steps()


def test_a_fused_step_that_takes_a_scale_beside_the_gradient_is_found():
    MAKERS["scaled"] = lambda parameters: torch.optim.AdamW(parameters, 0.1, fused=True)
    ranks = world("scaled")
    for one in ranks:
        one.optimizer.grad_scale, one.optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    train(ranks, 0, 1)
    with pytest.raises(proof.NotRepeatedError, match="more than the gradient"):
        ranks[0].keeper.settle(1)


def test_a_rank_whose_buddy_is_another_one_now_is_rebuilt_by_the_one_before():
    """Ranks of a lost host have come to two hosts: all the others' buddies change with that."""
    ranks = world("AdamW", count=4)
    for step, hosts in ((0, "aabb"), (3, "aacd")):
        worlds.meet(ranks, step, [*hosts])
        if step == 0:
            train(ranks, 0, 3)
    assert rebuilt(ranks, 2, 0, 3)
    train(ranks, 3, 1)
    assert 2 not in ranks[0].keeper.keeps()
    assert rebuilt(ranks, 2, 3, 4)


def units_of(optimizer, model):
    return units.ShardUnits({"model": model, "adam": optimizer}, all_parameters=True)


def test_optimizers_that_cannot_be_replayed_are_named():
    model = torch.nn.Linear(2, 2)
    for optimizer in (
        torch.optim.Muon([model.weight]),
        torch.optim.Adafactor(model.parameters()),
        type("AdamW", (torch.optim.AdamW,), {})(model.parameters()),
    ):
        assert units_of(optimizer, model).unreplayed == [f"adam ({type(optimizer).__name__})"]
    assert units_of(torch.optim.AdamW(model.parameters()), model).unreplayed == []


def test_an_optimizer_that_runs_the_passes_itself_is_refused_with_the_reason():
    model = torch.nn.Linear(2, 2)
    with pytest.raises(units.NotRepeatableError, match=r"^adam: the step of .*LBFGS runs forward"):
        units_of(torch.optim.LBFGS(model.parameters()), model)


def test_bytes_are_what_the_optimizer_keeps_before_and_after_its_first_step():
    ranks = world("AdamW")
    before = ranks[0].keeper.units.sizes()
    train(ranks, 0, 1)
    # 6, 2 and 2 elements; two moments, and a counter of each parameter
    assert ranks[0].keeper.units.sizes() == before == [(76, 24), (28, 8), (28, 8)]


@given(st.binary(max_size=200))
def test_bytes_that_are_no_entry_are_refused(data):
    with pytest.raises(entry.BadEntryError):
        entry.decode(data, 0)


@given(st.data())
def test_entries_with_other_fields_are_refused_or_harmless(data):
    spec = replicated.TensorSpec("", (2,), "float32", "cpu")
    good = entry.Entry(0, 1, True, 1, {0: spec}, {0: (spec,)}, {"o": [{}]})
    field = data.draw(st.sampled_from([one.name for one in dataclasses.fields(good)]))
    plain = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just(spec)
    junk = st.recursive(
        plain,
        lambda one: (
            st.lists(one, max_size=3) | st.dictionaries(st.integers(-1, 3), one, max_size=3)
        ),
        max_leaves=5,
    )
    changed = dataclasses.replace(good, **{field: data.draw(junk)})
    try:
        known = entry.decode(plain_values.pack(changed), 0)
    except entry.BadEntryError:
        return
    assert sum(map(entry.size_of, known.specs())) >= 0
    assert all(0 <= unit < known.units for unit in (*known.gradients, *known.renewed))


def test_an_entry_of_a_foreign_class_runs_nothing():
    class Runs:
        def __reduce__(self):
            return (pytest.fail, ("run",))

    with pytest.raises(entry.BadEntryError):
        entry.decode(pickle.dumps(Runs()), 0)


def test_an_entry_that_does_not_follow_is_refused():
    ranks = world("AdamW")
    train(ranks, 0, 2)
    mine = ranks[1].keeper._logs[0]
    for step in (7, -1):
        with pytest.raises(entry.BadEntryError, match="gives step"):
            mine.buffers(entry.Entry(0, step, False, 3, {}, {}, {}))
    with pytest.raises(entry.BadEntryError, match="gives 9 units, and 3"):
        mine.buffers(entry.Entry(0, 2, False, 9, {}, {}, {}))


def test_memory_is_what_the_kernel_and_the_container_leave(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable: 500 kB\n"
    )
    assert host_memory.available(tmp_path) == 500 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    for most, used, left in (("max", "5", 512_000), ("9000", "1000", 8000), ("10", "11", 0)):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
        assert host_memory.available(tmp_path) == left
    assert host_memory.available() > 0


# Who keeps whose.


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(1, 3))
def test_no_host_keeps_its_own_shards(sizes, count):
    hosts = [f"h{host}" for host, size in enumerate(sizes) for _ in range(size)]
    found = buddies(hosts, count)
    for rank, mine in enumerate(found):
        assert len({hosts[one] for one in mine}) == len(mine) == min(count, len(sizes) - 1)
        assert hosts[rank] not in {hosts[one] for one in mine}
        assert all(rank in wards(found, one) for one in mine)


def test_on_one_host_the_next_ranks_keep_them():
    assert buddies(["h"] * 3, 1) == [(1,), (2,), (0,)]
    assert buddies(["h"] * 3, 5) == [(1, 2), (2, 0), (0, 1)]
    assert buddies(["h"], 1) == [()]


def test_a_rank_without_memory_for_its_wards_is_named_with_both_figures():
    rooms = [Room("a", 70, 9, 100, 1), Room("b", 70, 9, 60, 1)]
    with pytest.raises(DisagreementError, match=r"rank 1 keeps .* \[0\]: 70 bytes .* take 60"):
        check_room(rooms)
    check_room([dataclasses.replace(one, limit=70) for one in rooms])
    with pytest.raises(DisagreementError, match=r"2 buddies need 3 hosts, and the job has 2"):
        check_room([dataclasses.replace(one, buddies=2) for one in rooms])
    with pytest.raises(DisagreementError, match=r"want \[1, 2\] buddies"):
        check_room([rooms[0], dataclasses.replace(rooms[1], buddies=2)])


# Which step, and from whom.


@given(st.integers(2, 5), st.integers(1, 2), st.data())
def test_a_plan_gives_each_rank_the_common_step_or_says_who_cannot_have_it(count, copies, data):
    """All histories of one vote. Whoever voted has given its gradients, and has its wards'.

    A rank may have died before it gave them: then nobody has heard of a success.
    """
    keepers = buddies([f"h{rank}" for rank in range(count)], copies)
    heard = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    dead = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    given_ = any(heard) or data.draw(st.booleans())
    state = [None if gone else 5 if ear else 4 for ear, gone in zip(heard, dead, strict=True)]
    kept = [
        {} if dead[rank] else dict.fromkeys(wards(keepers, rank), (2, 5 if given_ else 4))
        for rank in range(count)
    ]
    reports = [
        RankReport(one, given_ and one == 4, keeps) for one, keeps in zip(state, kept, strict=True)
    ]
    try:
        plan = plan_recovery(reports, [(rank,) for rank in range(count)])
    except UnrecoverableError:
        plan = None
    if plan is None:
        assert all(dead) or any(
            dead[rank] and all(dead[one] for one in keepers[rank]) for rank in range(count)
        )
        return
    assert plan.step == max(one for one in state if one is not None)
    assert plan.rebuilt == {rank for rank in range(count) if dead[rank]} == set(plan.copies)
    for rank, source in plan.copies.items():
        assert source in keepers[rank]
        assert not dead[source]
        first, last = kept[source][rank]
        assert first <= plan.step <= last
        assert plan.is_owed(rank) == (state[source] == plan.step - 1)


def test_a_buddy_that_cannot_rebuild_the_common_step_is_named():
    reports = [RankReport(None), RankReport(9, keeps={0: (3, 8)}), RankReport(9)]
    with pytest.raises(UnrecoverableError, match=r"rank 0 after step 9 .* rank 1 .* steps 3 to 8"):
        plan_recovery(reports, [(0,), (1,), (2,)])
