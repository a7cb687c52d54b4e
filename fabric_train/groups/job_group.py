"""The default group of a job, and the groups that the job makes beside it.

torch asks the default group for every other one (``new_group``, ``init_device_mesh``, FSDP2,
Megatron). The object that a framework holds stays; its connections are those of the generation.
When one rank is lost, all groups end, also those whose ranks all live: nobody goes on alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from fabric_train.groups.collectives import FabricGroup
from fabric_train.groups.generation_group import GenerationGroup
from fabric_train.groups.one_group import REFUSAL
from fabric_train.groups.torch_calls import Use

TOO_LATE = "a group is made before steps(): a replacement would not know of it"


class JobGroup(FabricGroup):
    """The default group. ``late``: spares wait for their rank, so the job may make groups."""

    def __init__(self, rank: int, world: int, *, late: bool) -> None:
        super().__init__(rank, world)
        self.has_meshes = late
        self.closed = False
        """The loop has begun: no group is made any more."""

    def for_torch(self, _store: object, _rank: int, world: int, _timeout: object) -> JobGroup:
        """This group, once, for ``init_process_group``. Raises ``NotImplementedError``."""
        if dist.is_initialized() or world != self.size():
            raise NotImplementedError(REFUSAL)
        return self

    @property
    def ranks_of_groups(self) -> dict[str, Sequence[int]]:
        """Of each group with this rank, by name."""
        return {
            name: one.ranks for name, one in self.subgroups.items() if isinstance(one, Subgroup)
        }

    def new_group(
        self, ranks: Sequence[int], timeout: object = None, pg_options: object = None,  # noqa: ARG002
        group_name: str | None = None, group_desc: str | None = None,  # noqa: ARG002
    ) -> Subgroup | None:  # fmt: skip
        """A group of ``ranks``; None: this rank is not in it. Raises ``RuntimeError``."""
        if not self.has_meshes:
            raise RuntimeError(f"{REFUSAL}: join(late=True) lets spares wait for their rank")
        if self.closed:
            raise RuntimeError(TOO_LATE)
        assert group_name is not None
        if self.rank() not in ranks:
            return None
        one = self.subgroups[group_name] = Subgroup(self, group_name, list(ranks))
        one.kept = self.kept
        inner = self.inner
        if inner is not None and self.use is not Use.LOCAL:
            inner.connect_parts({group_name: one.ranks})
        return one


class Subgroup(FabricGroup):
    """A group of ``ranks`` of the job. Its state is the default group's."""

    def __init__(self, job: JobGroup, name: str, ranks: Sequence[int]) -> None:
        self._job = job
        self._name = name
        self.ranks = ranks
        super().__init__(ranks.index(job.rank()), len(ranks))
        self.on_start = lambda result: job.on_start(result)
        self.on_end = lambda: job.on_end()
        self.on_reduce = lambda: job.on_reduce()

    @property
    def use(self) -> Use:
        """What the training thread may do."""
        return self._job.use

    @use.setter
    def use(self, _use: Use) -> None:
        """That of the default group holds."""

    @property
    def broken(self) -> bool:
        """A collective of any group has failed."""
        return self._job.broken

    @broken.setter
    def broken(self, _broken: bool) -> None:
        """That of the default group holds."""

    @property
    def _inner(self) -> GenerationGroup | None:
        inner = self._job.inner
        return inner.parts.get(self._name) if inner is not None else None

    @_inner.setter
    def _inner(self, _inner: GenerationGroup | None) -> None:
        """That of the default group holds."""

    @property
    def group_name(self) -> str:
        """That of torch's registry."""
        return self._name

    def _fail(self, inner: GenerationGroup, error: RuntimeError) -> None:
        whole = self._job.inner
        if whole is not None and whole.parts.get(self._name) is inner:
            self._job._fail(whole, error)  # noqa: SLF001
