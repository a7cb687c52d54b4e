"""``named_loop.py OUT [late]``: writes torchrun's names, as each process has them.

``joined.PROCESS`` behind ``join``, ``rank.R.PROCESS`` inside the first step of a rank. A process
whose rank is 1 is killed once, in step 2.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fabric_train

OUT, LATE = Path(sys.argv[1]), sys.argv[2:] == ["late"]
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
         "MASTER_PORT")  # fmt: skip
PROCESS = os.environ["FABRIC_TRAIN_PROCESS"].rpartition("/")[2]


def write(name):
    found = {one: os.environ[one] for one in NAMES if one in os.environ}
    (OUT / f"{name}.{PROCESS}").write_text(json.dumps(found))


job = fabric_train.join(late=LATE)
write("joined")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.protect(model=model, optimizer=optimizer)
for step in job.steps(6):
    with job.attempt():
        if not job.rehearsing:
            write(f"rank.{job.rank}")
            if job.rank == 1 and step == 2 and not (OUT / "killed").exists():
                (OUT / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(4)).sum().backward()
        optimizer.step()
