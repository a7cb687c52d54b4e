"""The training script of test_takeover.py: a small model with dropout, batch norm and AdamW.

``FAULTS`` lists faults, each ``RANK:STEP:MOMENT``; each strikes once in the whole job.
``SETUP_FAULT`` is a rank that dies once before it has a model. ``BROKEN_GPU``, of one host, is a
rank that dies there each time. ``KEPT``: the loop of a rank that lives runs each attempt once.
"""

import atexit
import ctypes
import hashlib
import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fabric_train
from fabric_train.state import transfer

TOTAL = int(sys.argv[1])
OUT = Path(sys.argv[2])
CHECKPOINTS = os.environ.get("CHECKPOINTS")
TAIL = "TAIL" in os.environ  # the scheduler's step comes after the attempt
PAUSE_S = float(os.environ.get("PAUSE_S", "0"))


def faults():
    for text in filter(None, os.environ.get("FAULTS", "").split(",")):
        rank, step, moment = text.split(":")
        yield int(rank), int(step), moment


def once(name):
    try:
        (OUT / f"struck.{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def strike(job, step, moment, act=lambda: os.kill(os.getpid(), signal.SIGKILL)):
    for fault in faults():
        if fault != (job.rank, step, moment) or job.rehearsing:
            continue
        if once(f"{job.rank}-{step}-{moment}"):
            act()


def hold_the_interpreter():
    ctypes.PyDLL(None).usleep(3_000_000)  # no other thread of this process runs meanwhile


def linger():
    atexit.register(time.sleep, 3600)  # nobody has to wait for that
    sys.exit("the loop of this rank ends with an error")


torch.manual_seed(0)
job = fabric_train.join(kept="KEPT" in os.environ)
(OUT / f"joined.{os.getpid()}").touch()
if os.environ.get("SETUP_FAULT") == str(dist.get_rank()) and once("setup"):
    os.kill(os.getpid(), signal.SIGKILL)
net = nn.Sequential(
    nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.BatchNorm1d(256),
    nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10),
)  # fmt: skip
model = DistributedDataParallel(net)
halves = list(net[:4].parameters()), list(net[4:].parameters())
rate = 2e-3 if os.environ.get("ODD_RANK") == str(dist.get_rank()) else 1e-3
optimizer = torch.optim.AdamW([{"params": half} for half in halves], lr=rate)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
# Without it, a scaler that does nothing and has no state.
scaler = torch.amp.GradScaler("cpu", growth_interval=7, enabled="SCALER" in os.environ)
saved = fabric_train.newest_checkpoint(CHECKPOINTS) if CHECKPOINTS else None
if saved is not None:
    net.load_state_dict(torch.load(saved.path / "model"))
    optimizer.load_state_dict(torch.load(saved.path / "optimizer"))
job.protect(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)

now = [0]
net[4].register_forward_hook(lambda *_: strike(job, now[0], "forward"))
net[6].register_full_backward_hook(lambda *_: strike(job, now[0], "backward"))
adam = importlib.import_module("torch.optim.adam")
update_group = adam.adam


def half_a_step(params, *args, **kwargs):
    if params[0] is halves[1][0]:
        strike(job, now[0], "optimizer")
    return update_group(params, *args, **kwargs)


adam.adam = half_a_step
transfer.CHUNK = 1 << 17  # many chunks, and tensors across them
send_chunks = transfer.chunks


def chunks(tensors):
    moment = "later" if threading.current_thread().name == "fabric-later" else "sending"
    for chunk in send_chunks(tensors):
        strike(job, -1, moment)
        yield chunk


transfer.chunks = chunks
memory_of = transfer.memory


def memory(chunk):
    moment = "corrupting" if len(chunk) == transfer.CHUNK else "misleading"
    strike(job, -1, moment, lambda: chunk[:1].add_(1))
    return memory_of(chunk)


transfer.memory = memory


def state_digest():
    digest = hashlib.sha256()
    tensors = dict(model.state_dict())
    for place, parameter in enumerate(model.parameters()):
        tensors |= {f"{place}/{key}": value for key, value in optimizer.state[parameter].items()}
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(bytes(tensors[name].reshape(-1).view(torch.uint8).tolist()))
    scalars = optimizer.param_groups[0]["lr"], scheduler.last_epoch, scaler.state_dict()
    digest.update(repr(scalars).encode())
    return digest.hexdigest()


def await_file(name):
    (OUT / f"pid.{name}").write_text(str(os.getpid()))
    while not (OUT / name).exists():
        time.sleep(0.02)


def save_checkpoint():
    try:
        with job.checkpoint(CHECKPOINTS) as path:
            (path / "digest").write_text(state_digest())
            strike(job, step, "writing", lambda: await_file("go on"))
            torch.save(model.module.state_dict(), path / "model")
            torch.save(optimizer.state_dict(), path / "optimizer")
    except fabric_train.CheckpointRefusedError as error:
        (OUT / "refused").write_text(str(error))
        raise


for step in job.steps(TOTAL, first=saved.step if saved else 0):
    now[0] = step
    with job.attempt():
        if not job.rehearsing:
            with (OUT / f"attempts.{os.getpid()}").open("a") as attempts:
                attempts.write(f"{job.rank}:{step}\n")
        random = torch.Generator().manual_seed(1000 * step + job.rank)
        x = torch.randn(32, 64, generator=random)
        y = torch.randint(0, 10, (32,), generator=random)
        strike(job, step, "error", linger)
        strike(job, step, "waits", lambda: await_file("go on"))
        strike(job, step, "marked", lambda: time.sleep(3))
        strike(job, step, "locked", hold_the_interpreter)
        strike(job, step, "disconnected", lambda: job._group.inner.abort())
        strike(job, step, "host", lambda: os.killpg(0, signal.SIGKILL))
        if os.environ.get("BROKEN_GPU") == str(job.rank) and step >= 9 and not job.rehearsing:
            os.kill(os.getpid(), signal.SIGKILL)  # wherever this host's rank gets so far
        if (job.rank, step, "always") in faults() and not job.rehearsing:
            sys.exit("this step always fails")
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if "SCALER" in os.environ and step % 9 == 8:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        strike(job, step, "gate")
        scaler.step(optimizer)
        scaler.update()
        if not TAIL:
            scheduler.step()
        time.sleep(PAUSE_S)
    if TAIL and job.applied:
        time.sleep(PAUSE_S)
        scheduler.step()
    if CHECKPOINTS and job.applied and job.rank == 0 and (step + 1) % 5 == 0:
        save_checkpoint()

(OUT / f"weights.{job.rank}").write_text(state_digest())
