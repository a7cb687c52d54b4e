"""Which ranks hold the same shards, and when a rank may send what it has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from on_demand import on_demand

from fabric_train.rules.agreement import Beginning, DisagreementError, agree_in_groups
from fabric_train.rules.step_rule import RankReport, UnrecoverableError, plan_recovery

own_parts = on_demand("fabric_train.rank.own_parts", needs="torch")
replicas = on_demand("fabric_train.state.replicas", needs="torch")

HSDP = [(0, 2), (1, 3)]


def said(groups, world):
    return [next((one for one in groups if rank in one), None) for rank in range(world)]


def test_what_all_ranks_say_is_a_partition():
    assert replicas.partition(said(HSDP, 4)) == HSDP
    assert replicas.partition([None] * 3) is None


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        (
            [(0, 2), (1, 3), (1, 2), (1, 3)],
            r"rank 0 says that ranks \[0, 2\].*rank 2 says \(1, 2\)",
        ),
        ([(0, 1), (0, 1), None, (3,)], r"rank 2 says that ranks \[0, 1, 2, 3\]"),
        ([(1,), (0, 1)], r"rank 0 says"),
        ([(0, 7), (1,)], r"rank 7 says no rank"),
    ],
)
def test_ranks_that_contradict_each_other_are_named(groups, says):
    with pytest.raises(ValueError, match=says):
        replicas.partition(groups)


def mesh(*ranks):
    torch = pytest.importorskip("torch")
    return type("Mesh", (), {"mesh": torch.tensor(ranks)})()


def test_a_script_declares_its_replicas_by_a_mesh_or_by_all_groups():
    assert replicas.declared(mesh(3, 1), 3, 4) == (1, 3)
    assert replicas.declared([[0, 2], [3, 1]], 1, 4) == (1, 3)
    assert replicas.Holders.of({}, [[0], [1]], 0, 2, late=True).alone
    assert not replicas.Holders.of({}, [[0, 1]], 0, 2, late=True).alone
    assert replicas.Holders.of({}, None, 0, 2, late=False).ranks is None


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ("ab", "neither a mesh nor a list"),
        (7, "neither a mesh nor a list"),
        ([[0, 2]], "rank 1 is in 0 of 1 groups"),
        ([[0, 1], [1, 2]], "rank 1 is in 2 of 2 groups"),
        ([[1, 1]], "not different ranks below 4"),
        ([[1, 9]], "not different ranks below 4"),
        ([[1, -1]], "not different ranks below 4"),
    ],
)
def test_declared_replicas_that_cannot_be_are_refused(groups, says):
    with pytest.raises(ValueError, match=says):
        replicas.declared(groups, 1, 4)


def test_replicas_are_declared_by_jobs_whose_spares_wait_for_their_rank():
    with pytest.raises(ValueError, match=r"join\(late=True\)"):
        replicas.Holders.of({}, [[0, 1]], 0, 2, late=False)


def parts():
    nn = pytest.importorskip("torch.nn")
    optim = pytest.importorskip("torch.optim")
    model = nn.Linear(2, 3)
    return {"model": model, "optimizer": optim.SGD(model.parameters()), "scheduler": object()}


EVERYWHERE, INSTANCES = [[0, 1, 2, 3]], [[0, 2], [1, 3]]


def test_parts_have_holders_of_their_own_and_a_state_comes_from_who_has_all_of_it():
    holders = replicas.Holders.of(
        parts(), {"model": EVERYWHERE, "optimizer": INSTANCES}, 1, 4, late=True
    )
    assert holders.ranks == (1, 3)
    assert holders.classes == {"model": (0, 1, 2, 3), "optimizer": (1, 3)}
    assert holders.declared


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ({"model": EVERYWHERE}, r"of \['model'\], and tensors are in \['model', 'optimizer'\]"),
        ({"model": EVERYWHERE, "optimizer": INSTANCES, "scheduler": EVERYWHERE}, "tensors are in"),
        (
            {"model": [[0, 1], [2, 3]], "optimizer": INSTANCES},
            r"optimizer is on ranks \[1, 3\], and not on all of \[0, 1\]",
        ),
        ({"model": EVERYWHERE, "optimizer": [[0, 2]]}, "rank 1 is in 0 of 1 groups"),
    ],
)
def test_holders_of_parts_that_give_no_rank_a_whole_state_are_refused(classes, says):
    with pytest.raises(ValueError, match=says):
        replicas.Holders.of(parts(), classes, 1, 4, late=True)


def test_a_gather_is_of_shards_that_are_declared():
    with pytest.raises(ValueError, match="gather needs replicas: which ranks hold which shard"):
        own_parts.OwnParts.of(None, parts(), {}, replicas.Holders(), gather=print)


def test_layouts_are_compared_within_groups():
    said = [{"model": "a"}, {"model": "b"}, {"model": "a"}, {"model": "c"}]
    exchange = lambda _mine: [Beginning("", one).encode() for one in said]  # noqa: E731
    agree_in_groups(exchange, said[0], (0, 2))
    with pytest.raises(
        DisagreementError, match=r"ranks \[1, 3\].*model is c on rank 3 and b on rank 1"
    ):
        agree_in_groups(exchange, said[1], (1, 3))


def test_a_source_that_has_applied_the_step_is_preferred_and_owes_nothing():
    plan = plan_recovery([RankReport(5), RankReport(4, ready=True), RankReport(None)])
    assert plan.copies == {2: 0}
    assert not plan.is_owed(2)


def test_a_source_with_gradients_alone_owes_its_state():
    """S1: rank 0 has not heard of the vote; its replica 2 died; 1 and 3 have stepped."""
    reports = [RankReport(4, ready=True), RankReport(5), RankReport(None), RankReport(5)]
    plan = plan_recovery(reports, HSDP)
    assert (plan.step, plan.apply, plan.copies) == (5, frozenset({0}), {2: 0})
    assert plan.is_owed(2)
    assert not any(plan.is_owed(rank) for rank in (0, 1, 3))


def test_a_shard_whose_holders_are_all_lost_ends_the_job_and_is_named():
    reports = [RankReport(4), RankReport(None), RankReport(4), RankReport(None)]
    with pytest.raises(UnrecoverableError, match=r"rank 1 .* has no live copy .*\[1, 3\]"):
        plan_recovery(reports, HSDP)


@given(
    st.integers(1, 3), st.integers(2, 3), st.data(),
)  # fmt: skip
def test_nobody_goes_on_with_a_step_that_its_source_has_not_applied(shards, copies, data):
    """All histories of one vote: who has heard of it, who has died; states are numbers of steps."""
    world = shards * copies
    groups = [tuple(range(shard, world, shards)) for shard in range(shards)]
    heard = data.draw(st.lists(st.booleans(), min_size=world, max_size=world))
    dead = data.draw(st.lists(st.booleans(), min_size=world, max_size=world))
    # Every rank held its gradients when it voted.
    state = [None if gone else 5 if ear else 4 for ear, gone in zip(heard, dead, strict=True)]
    reports = [RankReport(one, ready=one == 4) for one in state]
    try:
        plan = plan_recovery(reports, groups)
    except UnrecoverableError:
        assert any(all(dead[rank] for rank in group) for group in groups)
        return
    for rank, source in plan.copies.items():  # what is not owed is sent before anybody steps
        if not plan.is_owed(rank):
            state[rank] = state[source]
    for rank in plan.apply:
        state[rank] += 1
    for rank, source in plan.copies.items():
        if plan.is_owed(rank):
            state[rank] = state[source]
    assert set(state) == {plan.step}
