"""One rank of test_plugin_backend.py: ``collective_ranks.py RANK WORLD STORE MODE OUT``.

MODE ``agree``: every collective over gloo and over the plugin, compared. ``stuck``: the last rank
waits to be killed while the others are in an all-reduce; they say how that ended. OUT: a directory.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fabric_train.groups import backend
from fabric_train.groups.collectives import connect_generation
from fabric_train.groups.generation_group import method
from fabric_train.messages.process import Assignment

RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])
OUT = Path(sys.argv[5])
OPS = dist.ReduceOp


def connect(name, generation):
    os.environ[backend.VARIABLE] = name
    store = dist.PrefixStore(f"{name}.{generation}", dist.FileStore(sys.argv[3], WORLD))
    return connect_generation(Assignment(generation, RANK, WORLD, sys.argv[3]), store, 60)


def tensor(count, dtype=torch.float32, seed=0):
    random = torch.Generator().manual_seed(1000 * seed + RANK)
    if dtype.is_floating_point:
        return torch.randn(count, generator=random, dtype=torch.float64).to(dtype)
    return torch.randint(0, 5, (count,), generator=random).to(dtype)


def options(kind, **values):
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def close(mine, theirs, dtype):
    bits = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-5, torch.float64: 1e-13}
    tolerance = bits.get(dtype, 0)
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=WORLD * tolerance)


def check_sums(gloo, plugin):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32,
                  torch.int64, torch.uint8):  # fmt: skip
        for op in (OPS.SUM, OPS.MIN, OPS.MAX, OPS.PRODUCT):
            for count in (1, 1001):
                mine, theirs = tensor(count, dtype), tensor(count, dtype)
                how = options(dist.AllreduceOptions, reduceOp=op)
                plugin.allreduce([mine], how).wait()
                gloo.allreduce([theirs], how).wait()
                close(mine, theirs, dtype)
    mean = tensor(1000)
    plugin.allreduce([mean], options(dist.AllreduceOptions, reduceOp=OPS.AVG)).wait()
    total = tensor(1000)
    gloo.allreduce([total]).wait()
    close(mean, total / WORLD, torch.float32)


def check_moves(gloo, plugin):
    for group in (gloo, plugin):
        told = tensor(77)
        group.broadcast([told], options(dist.BroadcastOptions, rootRank=2)).wait()
        expected = torch.Generator().manual_seed(2)
        assert torch.equal(told, torch.randn(77, generator=expected, dtype=torch.float64).float())
    mine = tensor(600).view(20, 30)
    gathered = {}
    for name, group in (("gloo", gloo), ("plugin", plugin)):
        parts = [torch.zeros(20, 30) for _ in range(WORLD)]
        group.allgather([parts], [mine.t().contiguous().t()]).wait()  # rows and columns swapped
        whole = torch.zeros(WORLD * 600)
        method(group, "all_gather_single")(whole, mine.reshape(-1)).wait()
        assert torch.equal(torch.cat([part.reshape(-1) for part in parts]), whole)
        gathered[name] = whole
    assert torch.equal(gathered["gloo"], gathered["plugin"])
    summand = tensor(WORLD * 50, seed=3)
    before = summand.clone()
    part, total = torch.zeros(50), summand.clone()
    plugin.reduce_scatter_single(part, summand).wait()
    gloo.allreduce([total]).wait()
    close(part, total.view(WORLD, -1)[RANK], torch.float32)
    assert torch.equal(summand, before)
    rooted = tensor(40)
    plugin.reduce([rooted], options(dist.ReduceOptions, rootRank=1)).wait()
    sums = tensor(40)
    gloo.allreduce([sums]).wait()
    close(rooted, sums if RANK == 1 else tensor(40), torch.float32)
    at_root = [[torch.zeros(600) for _ in range(WORLD)]] if RANK == 1 else []
    plugin.gather(at_root, [mine.reshape(-1)], options(dist.GatherOptions, rootRank=1)).wait()
    if RANK == 1:
        assert torch.equal(torch.cat(at_root[0]), gathered["gloo"])
    spread = [[torch.full((9,), float(r)) for r in range(WORLD)]] if RANK == 0 else []
    mine = torch.zeros(9)
    plugin.scatter([mine], spread, options(dist.ScatterOptions, rootRank=0)).wait()
    assert torch.equal(mine, torch.full((9,), float(RANK)))
    plugin.barrier().wait()


def check_messages(plugin):
    """Both ways at once; a tensor that is not contiguous; each way in order."""
    peer = RANK ^ 1
    sent = [plugin.send([torch.full((1 << 18,), float(RANK + n))], peer, 5) for n in range(3)]
    table = torch.zeros(512, 1024).t()[:512]  # not contiguous
    got = [torch.zeros(1 << 18), torch.zeros(1 << 18)]
    works = [plugin.recv([one], peer, 5) for one in (*got, table)]
    for work in (*works, *sent):
        work.wait()
    for n, one in enumerate((*got, table)):
        assert torch.equal(one, torch.full(one.shape, float(peer + n)))


def check_refusals(plugin):
    for wrong in (torch.zeros(3, dtype=torch.complex64), torch.zeros(3, dtype=torch.bool)):
        with pytest.raises(TypeError, match="reduces no"):
            plugin.allreduce([wrong])
    with pytest.raises(TypeError, match="tensors of cpu"):
        plugin.allreduce([torch.zeros(3, device="meta")])
    with pytest.raises(ValueError, match="no peer"):
        plugin.send([torch.zeros(3)], RANK, 0)


def agree():
    gloo, plugin = connect("gloo", 1), connect("plugin", 2)
    check_sums(gloo.group, plugin.group)
    check_moves(gloo.group, plugin.group)
    check_messages(plugin.group)
    check_refusals(plugin.group)
    assert plugin.exchange(b"x" * RANK) == [b"x" * r for r in range(WORLD)]
    hashes = set()
    again = connect("plugin", 3)
    for group in (plugin, plugin, again):
        buckets = [tensor(count, seed=9) for count in (3, 100_003, 1 << 18)]
        for work in [group.group.allreduce([one]) for one in buckets]:
            work.wait()
        joined = torch.cat(buckets).view(torch.uint8)
        hashes.add(hashlib.sha256(bytes(joined.tolist())).hexdigest())
    assert len(hashes) == 1
    (OUT / f"hash.{RANK}").write_text(hashes.pop())
    gloo.vote()


def stuck():
    group = connect("plugin", 1)
    group.vote()
    if RANK == WORLD - 1:
        (OUT / "ready").touch()
        time.sleep(600)
    began = time.monotonic()
    memory = torch.ones(1 << 20)
    works = [group.group.allreduce([memory]), group.group.recv([torch.zeros(9)], WORLD - 1, 0)]
    if RANK == 0:
        while not (OUT / "abort").exists():
            time.sleep(0.01)
        began = time.monotonic()
        group.abort()
    errors = []
    for work in works:
        try:
            work.wait()
        except RuntimeError as error:
            errors.append(str(error))
    took = time.monotonic() - began
    after = memory.clone()
    time.sleep(0.2)
    assert torch.equal(memory, after)
    try:
        group.vote()
    except RuntimeError as error:
        errors.append(str(error))
    assert len(errors) == 3
    (OUT / f"error.{RANK}").write_text(f"{took:.3f} {errors[0]}")


torch.set_num_threads(1)
{"agree": agree, "stuck": stuck}[sys.argv[4]]()
