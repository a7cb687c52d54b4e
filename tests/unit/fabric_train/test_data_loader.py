"""The data loader of docs/operate/train.md, with real workers: no batch is lost or taken twice."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from on_demand import on_demand

torch = on_demand("torch")
torch_data = on_demand("torch.utils.data")
rank_local = on_demand("fabric_train.state.rank_local", needs="torch")
unprotected = on_demand("fabric_train.state.unprotected", needs="torch")

PAGE = Path(__file__).parents[3] / "docs/operate/train.md"
(BATCHES,) = re.findall(r"```python\n(class Batches:.*?)\n\n\nsampler", PAGE.read_text(), re.DOTALL)
RANK, WORLD, BATCH = 1, 2, 3
EPOCH = 4  # batches of a rank
TOTAL = 10


def samples(*, noise):
    """Each sample has its index, and a number: with ``noise`` a random one of the worker."""

    class Samples(torch_data.Dataset):
        def __len__(self):
            return EPOCH * BATCH * WORLD

        def __getitem__(self, index):
            return index, torch.rand(()).item() if noise else 0.0

    return Samples()


def build(workers, *, persistent):
    names = {}
    exec(BATCHES, names)
    dataset = samples(noise=workers > 0 and not persistent)
    # As a spare builds it: it has no rank yet.
    sampler = torch_data.DistributedSampler(dataset, num_replicas=WORLD, rank=0, seed=7)
    loader = torch_data.DataLoader(
        dataset, BATCH, sampler=sampler, num_workers=workers, generator=torch.Generator(),
        persistent_workers=persistent,
    )  # fmt: skip
    return names["Batches"](SimpleNamespace(rank=RANK), loader)


def take(data, count):
    return [tuple(part.tolist() for part in data.take()) for _ in range(count)]


def indices(batches):
    return [index for batch in batches for index in batch[0]]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_replacement_goes_on_with_the_very_next_batch(workers, persistent):
    """Within an epoch, at its end, right after a resume, and after a second one."""
    whole = take(build(workers, persistent=persistent), TOTAL)
    epochs = [indices(whole[at : at + EPOCH]) for at in (0, EPOCH)]
    assert all(len(set(epoch)) == EPOCH * BATCH for epoch in epochs)
    assert epochs[0] != epochs[1]
    lost = rank_local.LocalStates({"data": (data := build(workers, persistent=persistent))})
    at = 0
    for position in (2, EPOCH, EPOCH + 1):
        assert take(data, position - at) == whole[at:position]
        data = build(workers, persistent=persistent)
        found = rank_local.LocalStates({"data": data})
        found.restore(lost.capture({}), {})
        assert found.parts_now() == lost.parts_now(), "a state that is asked for right away"
        lost, at = found, position
    assert take(data, TOTAL - at) == whole[at:]


def test_an_attempt_that_is_run_again_takes_the_same_batch():
    data = build(2, persistent=False)
    states = rank_local.LocalStates({"data": data})
    take(data, 2)
    start = states.capture({})
    first = take(data, 1)
    states.restore(start, {})
    assert take(data, 1) == first


def test_workers_that_start_again_draw_nothing_from_the_generator_of_the_model():
    data = build(2, persistent=False)
    before = torch.get_rng_state()
    take(data, EPOCH + 1)
    assert torch.equal(before, torch.get_rng_state())


def test_an_iterator_that_nobody_protects_is_named():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    parts = {"model": model, "optimizer": optimizer}
    data = build(0, persistent=False)
    take(data, 1)
    assert unprotected.find_unprotected({**parts, "data": data}) == []
    batches = iter(data.loader)
    next(itertools.islice(batches, 1))
    what = "the position of an iterator over a DataLoader"
    assert unprotected.find_unprotected({**parts, "data": data}) == [what]
