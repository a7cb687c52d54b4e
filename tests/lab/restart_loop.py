"""The loop of docs/operate/train-checkpoints.md as it stands there: ``restart_loop.py TOTAL OUT``.

``CHECKPOINTS`` is its directory. The data loader is that of train.md.
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import fabric_train

PAGES = Path(__file__).parents[2] / "docs" / "operate"
TOTAL, OUT = int(sys.argv[1]), Path(sys.argv[2])


def block(page, start):
    """The code of ``page`` that begins with ``start``."""
    text = (PAGES / page).read_text()
    return start + text.partition(f"```python\n{start}")[2].partition("```")[0]


class Samples(Dataset):
    def __len__(self):
        return 70

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=random), index % 4


torch.manual_seed(0)
job = fabric_train.join()
net = nn.Sequential(
    nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)
)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
scaler = torch.amp.GradScaler("cpu", growth_interval=5)
loss_function = nn.functional.cross_entropy
loaders = block("train.md", "class Batches")
exec(loaders.partition("sampler = ")[0])
dataset = Samples()
sampler = DistributedSampler(dataset, num_replicas=job.world, rank=0, seed=7)
loader = DataLoader(dataset, 8, sampler=sampler, generator=torch.Generator())
data = Batches(job, loader)  # noqa: F821  the page's
job.protect(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler,
            local={"data": data})  # fmt: skip
loop = block("train-checkpoints.md", "kept = ").replace("/shared/gpt", os.environ["CHECKPOINTS"])
exec(loop.replace("steps(1000", f"steps({TOTAL}").replace("% 100", "% 5"))

digest = hashlib.sha256()
for part in (net, optimizer, scheduler, scaler, data):
    digest.update(repr(part.state_dict()).encode())
for one in net.state_dict().values():
    digest.update(bytes(one.reshape(-1).view(torch.uint8).tolist()))
(OUT / f"state.{job.rank}").write_text(digest.hexdigest())
