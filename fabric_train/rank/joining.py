"""How a script becomes part of its job."""

from __future__ import annotations

from fabric_train.rank.job import Job
from fabric_train.rank.launched import launched


def join(*, late: bool = False) -> Job:
    """Become a rank or a spare of the job whose fabric-run started this process.

    Initializes ``torch.distributed``. ``late``: of a spare it returns only when that has a rank;
    so the job may make further process groups before ``steps``, and its model may depend on the
    rank. Raises ``NotLaunchedError``, ``RefusedError``, ``AgentLostError``.
    """
    place = launched()
    job = Job(place.socket, place.memory, late=late)
    job._join(place.process, place.token)  # noqa: SLF001
    return job
