"""The copy of a rank's state: nothing that differs from what the source hashed is accepted."""

import dataclasses
import os
import pickle
import queue
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from on_demand import on_demand

torch = on_demand("torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
transfer = on_demand("fabric_train.state.transfer", needs="torch")


class Done:
    def __init__(self, wait):
        self._wait = wait

    def wait(self):
        self._wait()


class Pair:
    """Two ends in one process: what is sent is copied when it is received, in order."""

    def __init__(self, harm=lambda place, sent: sent):
        self._sent = queue.Queue()
        self._count = 0
        self._harm = harm

    def send(self, tensors, _to, _tag):
        self._sent.put(tensors[0].clone())
        return Done(lambda: None)

    def recv(self, tensors, _source, _tag):
        place, self._count = self._count, self._count + 1

        def wait():
            sent = self._sent.get(timeout=30)
            if isinstance(sent, Exception):
                raise sent
            tensors[0].copy_(self._harm(place, sent))

        return Done(wait)

    def break_off(self):
        self._sent.put(RuntimeError("connection closed"))


def parts(seed, width=300, kind="float32"):
    dtype = getattr(torch, kind)
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 7)
    ).to(dtype)
    # Neither its layout in memory nor that of its optimizer state is that of a plain tensor.
    net[0].weight.data = net[0].weight.data.t().contiguous().t()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1 * (seed + 1))
    net(torch.randn(4, width, dtype=dtype)).sum().backward()
    optimizer.step()
    return {"net": net, "optimizer": optimizer}


def copy(source, target, group, *, split=False, between=lambda: None):
    """``between``: what happens when the first part has arrived, if the state is ``split``."""
    failures = []

    def send():
        try:
            if move := transfer.send_state(group, source, 1, split=split):
                move()
        except Exception as error:
            failures.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        move = transfer.receive_state(group, target, 0)
        between()
        if move:
            move()
        return move is not None
    finally:
        sender.join(30)
        assert failures == []


def values(state):
    return [(name, tensor.detach().clone()) for name, tensor in state.tensors()]


def equal(one, other):
    pairs = zip(one, other, strict=True)
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs)


@given(st.deferred(lambda: st.lists(st.integers(0, 3 * transfer.CHUNK), max_size=30)))
def test_chunks_cover_every_byte_once_and_in_order(sizes):
    chunks = transfer.cut(sizes)
    covered = [0] * len(sizes)
    order = []
    for parts in chunks:
        assert 0 < sum(part.stop - part.start for part in parts) <= transfer.CHUNK
        assert len(parts) == 1 or all(sizes[p.tensor] == p.stop - p.start for p in parts)
        for part in parts:
            assert part.start == covered[part.tensor]
            covered[part.tensor] = part.stop
            order.append(part.tensor)
    assert covered == sizes
    assert order == sorted(order)


@pytest.mark.patient
@pytest.mark.parametrize(
    "kind", ["float32", "float64", "bfloat16"], ids=["kind0", "kind1", "kind2"]
)
@pytest.mark.parametrize("chunk", [1 << 12, 1 << 17, 4 << 20])
def test_the_copy_is_that_of_the_source_bit_by_bit(monkeypatch, kind, chunk):
    monkeypatch.setattr(transfer, "CHUNK", chunk)
    source, target = (replicated.ReplicatedState(parts(seed, kind=kind)) for seed in (0, 1))
    before = values(source)
    assert not equal(before, values(target))
    copy(source, target, Pair())
    assert equal(before, values(target))
    assert equal(before, values(source))
    assert target.optimizers()[0].param_groups[0]["lr"] == 0.1


def test_a_spare_without_optimizer_state_gets_it():
    source = replicated.ReplicatedState(parts(0))
    fresh = parts(1)
    fresh["optimizer"].state.clear()
    target = replicated.ReplicatedState(fresh)
    copy(source, target, Pair())
    assert equal(values(source), values(target))


def test_state_that_the_source_does_not_have_is_dropped():
    """A spare makes optimizer state before it knows for which parameters the job has some."""
    fresh, other = parts(0), parts(1)
    idle = fresh["net"][2].bias
    del fresh["optimizer"].state[idle]
    other["optimizer"].state[other["net"][2].bias]["count"] = 3
    source, target = replicated.ReplicatedState(fresh), replicated.ReplicatedState(other)
    copy(source, target, Pair())
    assert equal(values(source), values(target))
    assert not other["optimizer"].state[other["net"][2].bias]


def test_the_state_of_an_optimizer_comes_later_and_nothing_before_needs_it():
    source, target = replicated.ReplicatedState(parts(0)), replicated.ReplicatedState(parts(1))
    first = {}

    def look():
        first.update(values(target))

    assert copy(source, target, Pair(), split=True, between=look)
    expected = dict(values(source))
    assert expected.keys() == first.keys()
    for name, value in first.items():
        if name.startswith("net/") or name == "optimizer/0/exp_avg":
            assert torch.equal(value, expected[name]) == name.startswith("net/"), name
    assert equal(values(source), values(target))
    assert target.optimizers()[0].param_groups[0]["lr"] == 0.1


def test_what_another_kind_of_optimizer_keeps_comes_first():
    class Exchanging(torch.optim.SGD):
        """Its state may be anything, e.g. weights."""

    def build(seed):
        torch.manual_seed(seed)
        net = torch.nn.Linear(4, 4)
        optimizer = Exchanging(net.parameters(), lr=0.1, momentum=0.9)
        net(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        return replicated.ReplicatedState({"net": net, "optimizer": optimizer})

    source, target = build(0), build(1)
    assert not copy(source, target, Pair(), split=True)
    assert equal(values(source), values(target))


def test_a_spare_makes_optimizer_state_that_the_copy_fills():
    source = replicated.ReplicatedState(parts(0))
    fresh = parts(1)
    fresh["optimizer"].state.clear()
    target = replicated.ReplicatedState(fresh)
    target.make_optimizer_state()
    made = {name: tensor.data_ptr() for name, tensor in target.tensors()}
    assert made.keys() == dict(source.tensors()).keys()
    copy(source, target, Pair(), split=True)
    assert equal(values(source), values(target))
    assert {name: tensor.data_ptr() for name, tensor in target.tensors()} == made


def test_an_optimizer_that_makes_no_state_alone_does_no_harm():
    net = torch.nn.Linear(2, 2)
    state = replicated.ReplicatedState(
        {"net": net, "optimizer": torch.optim.LBFGS(net.parameters())}
    )
    state.make_optimizer_state()  # its step needs a closure
    assert [name for name, _ in state.tensors()] == ["net/weight", "net/bias"]


def count_messages(source, *, split):
    """How many there are, and which say only how long the next one is."""
    seen = []
    group = Pair(lambda _place, sent: seen.append(sent.dtype == torch.int64) or sent)
    copy(source, replicated.ReplicatedState(parts(1)), group, split=split)
    return len(seen), {place for place, is_length in enumerate(seen) if is_length}


@pytest.mark.patient
@pytest.mark.parametrize("split", [False, True])
def test_one_bit_that_differs_anywhere_is_refused(monkeypatch, split):
    monkeypatch.setattr(transfer, "CHUNK", 1 << 16)
    source = replicated.ReplicatedState(parts(0))
    messages, lengths = count_messages(source, split=split)
    for at in range(messages):

        def flip(place, sent, at=at):
            if place != at:
                return sent
            sent = sent.clone()
            sent.view(-1).view(torch.uint8)[-1] ^= 1
            return sent

        if at in lengths:
            continue  # another one is not even the same message
        with pytest.raises(transfer.CorruptStateError, match=r"chunk \d+ from rank 0|what rank 0"):
            copy(source, replicated.ReplicatedState(parts(1)), Pair(flip), split=split)


def test_a_source_of_another_layout_is_refused():
    source, target = (
        replicated.ReplicatedState(parts(0, 300)),
        replicated.ReplicatedState(parts(1, 200)),
    )
    with pytest.raises(replicated.LayoutError, match="at the source"):
        copy(source, target, Pair())


def test_a_connection_that_breaks_is_an_error_and_leaves_no_transfer_under_way():
    group = Pair()
    works = []
    plain = group.recv

    def recv(tensors, source, tag):
        works.append([tensors, False])
        work, mine = plain(tensors, source, tag), works[-1]

        def wait():
            mine[1] = True
            work.wait()

        return Done(wait)

    group.recv = recv
    state = replicated.ReplicatedState(parts(0))
    transfer.send_bytes(group, transfer.pack(state.offer()[0]), 1)
    for _ in range(8):
        group.break_off()
    with pytest.raises(RuntimeError, match="connection closed"):
        transfer.receive_state(group, replicated.ReplicatedState(parts(1)), 0)
    assert len(works) > 2
    assert all(waited for _, waited in works)


class Runs:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("what", ["code", "no manifest", "a type that is none", "too long", "less"])
def test_what_a_stranger_sends_for_a_manifest_is_refused(what, monkeypatch):
    state = replicated.ReplicatedState(parts(0))
    group = Pair()
    if what == "code":
        transfer.send_bytes(group, pickle.dumps(Runs()), 1)
    elif what == "no manifest":
        transfer.send_bytes(group, transfer.pack({"tensors": ()}), 1)
    elif what == "a type that is none":
        manifest = state.offer()[0]
        extra = dataclasses.replace(manifest.tensors[-1], name="optimizer/0/new", dtype="load")
        forged = dataclasses.replace(manifest, tensors=(*manifest.tensors, extra))
        transfer.send_bytes(group, transfer.pack(forged), 1)
    else:
        size = torch.tensor([1 << 40 if what == "too long" else -1, 0])
        group.send([size], 1, transfer._TAG).wait()
    refusals = (transfer.CorruptStateError, replicated.LayoutError)
    with pytest.raises(refusals, match=r"rank 0|load"):
        transfer.receive_state(group, replicated.ReplicatedState(parts(1)), 0)
