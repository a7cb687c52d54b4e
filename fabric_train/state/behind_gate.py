"""What changes behind the gate: between an optimizer's step and the start of the next one.

Rank-local state is given to the agent before the gate. Behind it a loop may change buffers,
attributes and positions once more: an average of the weights takes over batch norm's statistics,
which are this rank's own. Each rank compares what it finds at the start of a step with what its
gate saw. The next vote tells whether all ranks have changed the same to the same. If they have,
another rank's values are right for a replacement. If not, the state is given to the agent again at
the start of the step.

A rank that is lost between its step and that moment takes its own values with it. Its replacement
uses another rank's, and says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fabric_train.state.plain_values import carry

UNCOMPARED = 1 << 20
"""Bytes that are sent at most of what was never compared: the next vote tells whether to send."""
MOST = 16 << 20
"""Bytes that are sent at most of what only changes behind the gate."""
_EXACT = 64 << 10  # bytes of a tensor, up to which its digest is a hash
_DIGITS = 62  # of a digest that is voted on: it and its negative are 64-bit integers


@carry
@dataclass(frozen=True)
class BehindGate:
    """Names of what has ``changed`` behind the last gate, and what the votes on such have shown."""

    changed: frozenset[str] = frozenset()
    equal: frozenset[str] = frozenset()
    unequal: frozenset[str] = frozenset()

    def having(self, changed: frozenset[str]) -> BehindGate:
        """The same of another step, with what has ``changed`` there."""
        return replace(self, changed=changed)

    def voted(self, names: frozenset[str], *, equal: bool) -> BehindGate:
        """The ranks have compared their values of ``names``."""
        if equal:
            return replace(self, equal=self.equal | (names - self.unequal))
        return replace(self, equal=self.equal - names, unequal=self.unequal | names)

    @property
    def rank_local(self) -> frozenset[str]:
        """What has changed, and for which another rank's values may be wrong."""
        return self.changed - self.equal


def digest(values: Mapping[str, Any]) -> int:
    """A number that differs, as good as always, where names or values do."""
    total = hashlib.sha256()
    for name, value in sorted(values.items()):
        total.update(name.encode())
        total.update(_bytes_of(value) if isinstance(value, Tensor) else repr(value).encode())
    return int.from_bytes(total.digest()[:8]) >> (64 - _DIGITS)


def size_of(value: object) -> int:
    """Bytes of a value that is sent."""
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 8


def _bytes_of(tensor: Tensor) -> bytes:
    """All bytes of a small tensor; of a large one a sum of its words, weighted by their places."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if flat.numel() <= _EXACT:
        return bytes(flat.tolist())
    rest = flat.numel() % 8
    words = flat[: flat.numel() - rest].view(torch.int64)
    halves = words[0::2].sum(), words[1::2].sum()
    return repr([int(one) for one in halves]).encode() + bytes(
        flat[-rest:].tolist() if rest else []
    )
