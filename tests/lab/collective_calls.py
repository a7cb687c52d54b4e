"""Collectives of torch.distributed, random arguments: ``collective_calls.py MODE COUNT OUT``.

MODE ``plain``: as torch does it over gloo. ``job``: inside an attempt of a job of fabric-run. Both
draw the same calls from the same seed. The results of rank R are in ``OUT/results.R``: one line of
JSON for each call, with its name, its element type, its reduction, and the bytes or the error.

A fourth argument ``groups``: of four ranks, each call is over the world, over the rows or columns
of a mesh, or over two uneven groups at once. All numbers are small whole ones: every order of a sum
gives the same bits.
"""

import json
import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch.distributed.device_mesh import init_device_mesh

MODE, COUNT, OUT = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
GROUPED = sys.argv[4:] == ["groups"]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
REDUCED = [*FLOATS, torch.int32, torch.int64, torch.int8, torch.uint8]
MOVED = [*REDUCED, torch.bool]
OPS = ["SUM", "MIN", "MAX", "PRODUCT", "AVG", "BAND", "BOR", "BXOR"]


class Call:
    """Random arguments of one call: alike on all ranks, except for the numbers."""

    def __init__(self, number, members, group):
        """``members``: ranks of ``group``, this one among them."""
        self.random = random.Random(number)
        self.members, self.group = members, group
        self.rank, self.world = members.index(dist.get_rank()), len(members)
        self.root = self.random.randrange(self.world)
        self.op = "SUM"
        self.dtype = None
        self._drawn = 0
        self._number = number

    def choose(self, dtypes, *, reduces=False):
        self.dtype = self.random.choice(dtypes)
        if reduces:
            whole = not (self.dtype.is_floating_point or self.dtype.is_complex)
            ops = OPS[:4] + (OPS[5:] if whole else [])
            ops += ["AVG"] if self.dtype in (torch.float32, torch.float64) else []
            self.op = self.random.choice(ops)
        return self

    @property
    def source(self):
        """The root, as a rank of the job."""
        return self.members[self.root]

    @property
    def how(self):
        return getattr(dist.ReduceOp, self.op)

    def size(self, least=0):
        return self.random.choice([least, 1, 2, 7, 64, 1000])

    def shape(self):
        return (*((self.random.choice([1, 2, 3]),) * self.random.randrange(3)), self.size(1))

    def tensor(self, *shape, rank=None):
        """Of this rank, or of ``rank``; now and then not contiguous."""
        self._drawn += 1
        rank = self.rank if rank is None else rank
        seed = 10_000 * self._number + 100 * self._drawn + self.members[rank]
        made = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(seed))
        made = made.to(self.dtype)
        if len(shape) == 2 and self.random.random() < 0.3:
            return made.t().contiguous().t()
        return made

    def zeros(self, *shape):
        return torch.zeros(shape, dtype=self.dtype)


def all_reduce(call):
    one = call.choose(REDUCED, reduces=True).tensor(*call.shape()).contiguous()
    dist.all_reduce(one, call.how, call.group)
    return [one]


def all_reduce_later(call):
    one = call.choose(REDUCED, reduces=True).tensor(call.size(1))
    work = dist.all_reduce(one, call.how, call.group, async_op=True)
    work.wait()
    return [one]


def all_reduce_coalesced(call):
    call.choose(REDUCED)
    several = [call.tensor(call.size(1)) for _ in range(3)]
    dist.all_reduce_coalesced(several, group=call.group)
    return several


def broadcast(call):
    one = call.choose(MOVED).tensor(*call.shape()).contiguous()
    dist.broadcast(one, call.source, call.group)
    return [one]


def reduce(call):
    one = call.choose(REDUCED, reduces=True).tensor(call.size(1))
    dist.reduce(one, call.source, call.how, call.group)
    return [one] if call.rank == call.root else []  # elsewhere gloo leaves what it likes


def all_gather(call):
    one = call.choose(MOVED).tensor(*call.shape())
    parts = [torch.zeros_like(one).contiguous() for _ in range(call.world)]
    dist.all_gather(parts, one.contiguous(), call.group)
    return parts


def all_gather_into_tensor(call):
    size = call.choose(MOVED).size(1)
    whole = call.zeros(call.world * size)
    dist.all_gather_into_tensor(whole, call.tensor(size), call.group)
    return [whole]


def all_gather_coalesced(call):
    call.choose(MOVED)
    mine = [call.tensor(call.size(1)) for _ in range(2)]
    parts = [[torch.zeros_like(one) for one in mine] for _ in range(call.world)]
    dist.all_gather_coalesced(parts, mine, call.group)
    return [one for each in parts for one in each]


def gather(call):
    one = call.choose(MOVED).tensor(call.size(1))
    parts = [torch.zeros_like(one) for _ in range(call.world)]
    at_root = call.rank == call.root
    dist.gather(one, parts if at_root else None, call.source, call.group)
    return parts


def scatter(call):
    size = call.choose(MOVED).size(1)
    one, parts = call.zeros(size), [call.tensor(size) for _ in range(call.world)]
    dist.scatter(one, parts if call.rank == call.root else None, call.source, call.group)
    return [one]


def reduce_scatter(call):
    size = call.choose(REDUCED, reduces=True).size(1)
    one = call.zeros(size)
    parts = [call.tensor(size) for _ in range(call.world)]
    dist.reduce_scatter(one, parts, call.how, call.group)
    return [one]


def reduce_scatter_tensor(call):
    size = call.choose(REDUCED, reduces=True).size(1)
    one = call.zeros(size)
    dist.reduce_scatter_tensor(one, call.tensor(call.world * size), call.how, call.group)
    return [one]


def all_to_all(call):
    call.choose(MOVED)
    size = call.size(1)  # gloo moves parts of one size alone
    got = [call.zeros(size) for _ in range(call.world)]
    dist.all_to_all(got, [call.tensor(size) for _ in range(call.world)], call.group)
    return got


def all_to_all_single(call):
    width = call.choose(MOVED).random.choice([1, 3])
    if call.random.random() < 0.5:
        rows = call.world * call.size(1)
        got = call.zeros(rows, width)
        dist.all_to_all_single(got, call.tensor(rows, width).contiguous(), group=call.group)
        return [got]
    table = [[call.random.choice([0, 1, 5]) for _ in range(call.world)] for _ in range(call.world)]
    give, take = table[call.rank], [row[call.rank] for row in table]
    got = call.zeros(sum(take), width)
    mine = call.tensor(sum(give), width).contiguous()
    dist.all_to_all_single(got, mine, take, give, call.group)
    return [got]


def send_and_receive(call):
    size, tag = call.choose(MOVED).size(1), call.random.randrange(5)
    if call.world == 1:
        return []
    got, there = call.zeros(size), call.members[(call.rank + 1) % call.world]
    work = dist.isend(call.tensor(size), there, call.group, tag)
    dist.recv(got, call.members[(call.rank - 1) % call.world], call.group, tag)
    work.wait()
    return [got]


def batch(call):
    size = call.choose(MOVED).size(1)
    got = [call.zeros(size) for _ in range(call.world)]
    others = [other for other in range(call.world) if other != call.rank]
    there, group = call.members, call.group
    works = [dist.P2POp(dist.isend, call.tensor(size), there[other], group) for other in others]
    works += [dist.P2POp(dist.irecv, got[other], there[other], group) for other in others]
    for work in dist.batch_isend_irecv(works) if works else ():
        work.wait()
    return got


def receive_from_any(call):
    size = call.choose(MOVED).size(1)
    if os.environ.get("FABRIC_TRAIN_BACKEND") == "plugin":
        dist.recv(
            call.zeros(size), group=call.group, tag=9
        )  # refused; nobody may have sent anything then
    if call.rank == call.root:
        got = {}
        for _ in range(call.world - 1):
            one = call.zeros(size)
            got[dist.recv(one, group=call.group, tag=9)] = one
        return [got[source] for source in sorted(got)]
    dist.send(call.tensor(size), call.source, call.group, 9)
    return []


def barrier(call):
    dist.barrier(call.group)
    return []


def objects(call):
    mine = {"rank": call.rank, "text": "x" * call.size(1)}
    found = [None] * call.world
    dist.all_gather_object(found, mine, call.group)
    told = [mine]
    dist.broadcast_object_list(told, call.source, call.group)
    gathered = [None] * call.world
    at_root = call.rank == call.root
    dist.gather_object(mine, gathered if at_root else None, call.source, call.group)
    given = [None]
    several = list(range(call.world)) if at_root else None
    dist.scatter_object_list(given, several, call.source, call.group)
    return [found, told, gathered if at_root else [], given]


def functional_all_reduce(call):
    one = call.choose(REDUCED).tensor(call.size(1))
    return [functional.all_reduce(one, "sum", call.group) + 0]


def functional_all_gather(call):
    one = call.choose(MOVED).tensor(2, call.size(1))
    return [functional.all_gather_tensor(one, call.random.randrange(2), call.group).clone()]


def functional_reduce_scatter(call):
    one = call.choose(REDUCED).tensor(2 * call.world, call.size(1))
    return [functional.reduce_scatter_tensor(one, "sum", 0, call.group) + 0]


def functional_all_to_all(call):
    one = call.choose(MOVED).tensor(call.world * 2, 3).contiguous()
    return [functional.all_to_all_single(one, None, None, call.group).clone()]


def functional_broadcast(call):
    one = call.choose(MOVED).tensor(call.size(1))
    return [functional.broadcast(one, call.root, call.group).clone()]


def functional_coalesced(call):
    call.choose(REDUCED)
    mine = [call.tensor(call.world * 2) for _ in range(2)]
    group = call.group
    found = list(functional.all_reduce_coalesced(mine, "sum", group))
    found += functional.all_gather_into_tensor_coalesced(mine, group)
    found += functional.reduce_scatter_tensor_coalesced(mine, "sum", [0, 0], group)
    return [one + 0 for one in found]


def with_gradient(call):
    one = call.choose(FLOATS[:2]).tensor(4 * call.world).requires_grad_()
    whole = differentiable.all_reduce(one * 2, group=call.group)
    parts = []
    if call.group is dist.group.WORLD:  # over gloo torch takes ranks of others for those of the job
        parts = differentiable.all_gather(one, call.group)
    (whole.sum() + sum(part.sum() for part in parts)).backward()
    return [whole.detach(), one.grad]


CALLS = [
    all_reduce, all_reduce_later, all_reduce_coalesced, broadcast, reduce, all_gather,
    all_gather_into_tensor, all_gather_coalesced, gather, scatter, reduce_scatter,
    reduce_scatter_tensor, all_to_all, all_to_all_single, send_and_receive, batch,
    receive_from_any, barrier, objects, functional_all_reduce, functional_all_gather,
    functional_reduce_scatter, functional_all_to_all, functional_broadcast, functional_coalesced,
    with_gradient,
]  # fmt: skip


def to_text(one):
    if isinstance(one, torch.Tensor):
        flat = one.contiguous().view(-1)
        return [list(one.shape), bytes(flat.view(torch.uint8).tolist()).hex()]
    return one


def made_groups():
    """Ways to divide the ranks: members → group, for each. The first one is the world."""
    world = list(range(dist.get_world_size()))
    ways = [{tuple(world): dist.group.WORLD}]
    if not GROUPED:
        return ways
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    for name in ("rows", "columns"):
        group = mesh[name].get_group()
        ways.append({tuple(dist.get_process_group_ranks(group)): group})
    uneven = [((0, 1, 3), dist.new_group([0, 1, 3])), ((2,), dist.new_group([2]))]
    return [*ways, dict(uneven)]


def perform(ways, *, alone=False):
    """``alone``: in a rehearsal. Nobody sends objects then."""
    lines = []
    for number in range(COUNT):
        make = CALLS[number % len(CALLS)]
        if alone and make is objects:
            continue
        way = ways[number // len(CALLS) % len(ways)]
        members = next(one for one in way if dist.get_rank() in one)
        call = Call(number, members, way[members])
        try:
            found = [to_text(one) for one in make(call)]
        except (RuntimeError, TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
        line = {"call": make.__name__, "op": call.op, "type": str(call.dtype), "found": found}
        lines.append(json.dumps(line))
    return lines


def run_plain():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD"])
    store = dist.FileStore(str(OUT / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return rank, perform(made_groups())


def run_job():
    import fabric_train

    job = fabric_train.join(late=GROUPED)
    ways = made_groups()
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    job.protect(model=net, optimizer=optimizer)
    lines = []
    for _ in job.steps(1):
        with job.attempt():
            if job.rehearsing:
                perform(ways, alone=True)
            else:
                lines = perform(ways)
            net(torch.ones(2)).sum().backward()
            optimizer.step()
    return job.rank, lines


if __name__ == "__main__":
    me, results = run_plain() if MODE == "plain" else run_job()
    (OUT / f"results.{me}").write_text("\n".join(results))
