"""What a GPU run does: collectives, protocols, environment, and whether this machine can. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Operation = Literal["all_reduce", "all_to_all", "send_recv"]
Network = Literal["FABRIC", "Socket"]

WORLD = 2
PROTOCOLS = ("Simple", "LL")
"""Those that NCCL uses through host memory, where every bit has to be right."""
FORCED = "LL128"
"""NCCL never takes it there by itself; see :mod:`lab.gpu.lines`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One collective of ``elements`` numbers of ``dtype`` (a torch name) on each rank."""

    operation: Operation
    elements: int
    dtype: str

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.operation} {self.elements} x {self.dtype}"


# 8 bytes, 64 KiB and 16 MiB; whole numbers, and floats whose sum depends on every bit of them.
STEPS = tuple(
    Step(operation, elements, dtype)
    for operation in ("all_reduce", "all_to_all", "send_recv")
    for elements, dtype in (
        (2, "int32"),
        (16_384, "float32"),
        (4 << 20, "float32"),
        (65_536, "bfloat16"),
    )
)


def seed(round_number: int, step: int, rank: int) -> int:
    """Of the numbers that a rank puts in; the same in every run."""
    return (round_number * 1_000 + step) * WORLD + rank + 1


def environment(
    *, rank: int, protocol: str, plugin: Path, job: str, network: Network = "FABRIC"
) -> dict[str, str]:
    """What NCCL reads: our plugin, its protocol, and that the two ranks are two hosts.

    With the same host id NCCL would refuse two ranks on one GPU, or join them by shared memory.
    ``network`` Socket: NCCL's own TCP in the plugin's place.
    """
    return {
        "NCCL_HOSTID": f"fabric-gpu-{rank}",
        "NCCL_NET_PLUGIN": str(plugin) if network == "FABRIC" else "none",
        "NCCL_NET": network,
        "NCCL_PROTO": protocol,
        "NCCL_SOCKET_IFNAME": "rail",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "FABRIC_JOB": job,
    }


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found; see :func:`lab.gpu.machine.look`."""

    root: bool
    tools: Mapping[str, bool]
    plugin: Path | None
    torch: str
    """Its version; empty: it cannot be imported."""
    cuda: bool
    nccl: bool


def missing(machine: Machine) -> str:
    """Why a GPU run cannot be had here, as one line; empty when it can."""
    reasons = []
    if not machine.torch:
        reasons.append("PyTorch cannot be imported (requirements/torch.txt has it)")
    elif not machine.cuda:
        reasons.append(f"PyTorch {machine.torch} sees no CUDA device (nvidia-smi)")
    elif not machine.nccl:
        reasons.append(f"PyTorch {machine.torch} was built without NCCL")
    if not machine.root:
        reasons.append("not root: the paths are network namespaces")
    absent = sorted(tool for tool, there in machine.tools.items() if not there)
    if absent:
        reasons.append(f"not installed: {', '.join(absent)}")
    if machine.plugin is None:
        reasons.append("the plugin is not built (./run test unit builds it)")
    return "; ".join(reasons)
