"""What this machine has of what a GPU run needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab.gpu.plan import Machine, missing
from lab.node import build_dir

_PROBE = """
import torch
import torch.distributed as dist
nccl = dist.is_available() and dist.is_nccl_available()
print(torch.__version__, int(torch.cuda.is_available()), int(nccl))
"""


def plugin() -> Path:
    """Where the build puts it."""
    return build_dir() / "nccl_plugin" / "libnccl-net-fabric.so"


def cannot(program: str) -> bool:
    """Whether this machine lacks what a GPU run needs; says why, on stderr."""
    reason = missing(look())
    if reason:
        print(f"{program}: {reason}", file=sys.stderr)
    return bool(reason)


def look(python: str = sys.executable) -> Machine:
    """Asks ``python``'s PyTorch in a process of its own: CUDA is not to start in this one."""
    try:
        asked = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, check=True, timeout=120
        )
        torch, cuda, nccl = asked.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        torch, cuda, nccl = "", "0", "0"
    return Machine(
        root=os.geteuid() == 0,
        tools={tool: shutil.which(tool) is not None for tool in ("ip", "nft")},
        plugin=plugin() if plugin().exists() else None,
        torch=torch,
        cuda=cuda == "1",
        nccl=nccl == "1",
    )
