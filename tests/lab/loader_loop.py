"""The training script of test_loader_workers.py: a DataLoader with four workers feeds each rank.

``loader_loop.py STEPS OUT RANK STEP``: the main process of ``RANK`` is killed at ``STEP`` while its
workers hang in their reading and live on. Without ``RANK`` nobody is.
"""

import contextlib
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import fabric_train

TOTAL, OUT = int(sys.argv[1]), Path(sys.argv[2])
VICTIM, STRUCK_AT = (int(word) for word in (*sys.argv[3:], "-1", "-1")[:2])
WORKERS = 4
HANG_S = 600


class Batches(Dataset):
    """One batch a step; as storage that hangs from ``hang_from`` on."""

    def __init__(self, rank, hang_from):
        self.rank, self.hang_from = rank, hang_from

    def __len__(self):
        return TOTAL

    def __getitem__(self, step):
        if step >= self.hang_from:
            (OUT / f"hangs.{os.getpid()}").touch()
            time.sleep(HANG_S)
        random = torch.Generator().manual_seed(1000 * step + self.rank)
        return torch.randn(32, 64, generator=random), torch.randint(0, 10, (32,), generator=random)


def batches(first):
    """From step ``first`` on, by workers that read ahead."""
    victim = job.rank == VICTIM and not (OUT / "struck").exists()
    data = Batches(job.rank, STRUCK_AT + 1 if victim else TOTAL)
    return iter(
        DataLoader(data, batch_size=None, sampler=range(first, TOTAL), num_workers=WORKERS,
                   prefetch_factor=2, multiprocessing_context="fork")
    )  # fmt: skip


def tcp_sockets(pid):
    """Inodes of the TCP sockets that a process holds."""
    links = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this loop
            links.add(str(path.readlink()))
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    tcp = {f"socket:[{row[9]}]" for row in rows}
    return tcp & links


def strike():
    while len(hanging := list(OUT.glob("hangs.*"))) < WORKERS:
        time.sleep(0.01)
    own = tcp_sockets(os.getpid())
    shared = [len(own & tcp_sockets(int(path.suffix[1:]))) for path in hanging]
    (OUT / "sockets").write_text(f"{len(own)} {max(shared)}")
    (OUT / "struck").write_text(str(time.monotonic_ns()))
    os.kill(os.getpid(), signal.SIGKILL)


torch.manual_seed(0)
job = fabric_train.join()
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
job.protect(model=model, optimizer=optimizer)

loader, ahead = None, -1
x, y = None, None
for step in job.steps(TOTAL):
    with job.attempt():
        if job.rehearsing:
            x, y = Batches(job.rank, TOTAL)[step]
        elif ahead != step:
            if loader is None or ahead != step - 1:
                loader = batches(step)
            x, y = next(loader)
            ahead = step
        if (job.rank, step) == (VICTIM, STRUCK_AT) and not (OUT / "struck").exists():
            strike()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    again = job.applied and not job.rehearsing and step >= STRUCK_AT and (OUT / "struck").exists()
    if again and not (OUT / f"again.{job.rank}").exists():
        (OUT / f"again.{job.rank}").write_text(str(time.monotonic_ns()))

digest = hashlib.sha256()
for tensor in net.state_dict().values():
    digest.update(tensor.numpy().tobytes())
(OUT / f"weights.{job.rank}").write_text(digest.hexdigest())
