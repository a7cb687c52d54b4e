"""Ranks with shards of their own, in one process: what they give each other goes through queues."""

import queue
import threading

from on_demand import on_demand

torch = on_demand("torch")
gradient_keeper = on_demand("fabric_train.shards.gradient_keeper", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
units = on_demand("fabric_train.shards.units", needs="torch")
whole = on_demand("fabric_train.shards.whole", needs="torch")


class Done:
    def __init__(self, wait=lambda: None):
        self.wait = wait


class Network:
    """Messages between ranks, in order. What ``harm`` returns arrives; an exception is raised."""

    def __init__(self, world, harm=lambda source, to, place, sent: sent):
        self._queues = {(a, b): queue.Queue() for a in range(world) for b in range(world)}
        self._counts = dict.fromkeys(self._queues, 0)
        self._harm = harm
        self._broken = threading.Event()

    def of(self, rank):
        return End(self, rank)

    def send(self, source, to, data):
        place = self._counts[source, to]
        self._counts[source, to] += 1
        data = self._harm(source, to, place, data)
        if isinstance(data, Exception):
            self.end()
            raise data
        self._queues[source, to].put(data)

    def receive(self, source, to):
        while not self._broken.is_set():
            try:
                return self._queues[source, to].get(timeout=0.05)
            except queue.Empty:
                continue
        raise RuntimeError("connection closed")

    def end(self):
        self._broken.set()


class End:
    def __init__(self, network, rank):
        self._network, self._rank = network, rank

    def send(self, tensors, to, _tag):
        self._network.send(self._rank, to, tensors[0].clone())
        return Done()

    def recv(self, tensors, source, _tag):
        return Done(lambda: tensors[0].copy_(self._network.receive(source, self._rank)))


class Rank:
    """A model of its own, and what it keeps of others."""

    def __init__(self, rank, make, options, seed=0):
        torch.manual_seed(1000 * seed + rank)
        self.rank = rank
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1, bias=False))
        self.optimizer = make(self.model.parameters())
        self.parts = {"model": self.model, "optimizer": self.optimizer}
        self.state = replicated.ReplicatedState(self.parts, (rank,), kept=True)
        kept = units.ShardUnits(self.parts, all_parameters=True)
        kind = whole.CopyKeeper if kept.unreplayed else gradient_keeper.GradientKeeper
        self.keeper = kind(kept, options)

    def give(self, seed):
        """An attempt: gradients."""
        random = torch.Generator().manual_seed(seed * 100 + self.rank)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=random)

    def step(self):
        self.optimizer.step()
        self.keeper.stepped(self.optimizer)

    def values(self):
        return {name: one.clone() for name, one in self.state.tensors()}


def together(ranks, act):
    """Do ``act`` for all ``ranks`` at the same time; what each raises, by rank."""
    raised = {}

    def one(rank):
        try:
            act(rank)
        except Exception as error:
            raised[rank.rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def meet(ranks, step, hosts=None):
    hosts = hosts or [f"h{one.rank}" for one in ranks]
    keeps = [one.keeper.keeps() for one in ranks]
    for one in ranks:
        one.keeper.meet(one.rank, hosts, step, keeps)


def exchange(ranks, step, network=None):
    network = network or Network(len(ranks))

    def act(rank):
        try:
            rank.keeper.exchange(network.of(rank.rank), rank.rank, step, rank.state.scalars())
        except Exception:
            network.end()
            raise

    return together(ranks, act)


def rebuild(ranks, lost, source, step, fresh):
    """``fresh`` gets the state of rank ``lost`` after ``step`` steps from rank ``source``."""
    network = Network(len(ranks))

    def act(rank):
        end = network.of(rank.rank)
        if rank is fresh:
            rank.keeper.receive(end, rank.state, source)
        else:
            rank.keeper.send(end, rank.state, lost, step)

    return together([ranks[source], fresh], act)
