"""How a script becomes part of its job."""

from __future__ import annotations

from fabric_train.rank.framework_job import FrameworkJob
from fabric_train.rank.job import Job
from fabric_train.rank.kept_job import KeptJob
from fabric_train.rank.launched import launched


def join(*, late: bool = False, kept: bool = False) -> Job:
    """Become a rank or a spare of the job whose fabric-run started this process.

    Initializes ``torch.distributed``. ``late``: of a spare it returns only when that has a rank;
    so the job may make further process groups before ``steps``, and its model may depend on the
    rank. ``kept``: collectives are kept and repeated after a loss, so that the loop of a rank that
    lives runs each attempt once. Raises ``BackendError``, ``NotLaunchedError``, ``RefusedError``,
    ``AgentLostError``.
    """
    place = launched()
    kind = KeptJob if kept else Job
    job = kind(place.socket, place.memory, late=late)
    job._join(place.process, place.token)  # noqa: SLF001
    return job


def join_framework() -> FrameworkJob:
    """As ``join``, for a script whose loop is a framework's: ``frameworks``."""
    place = launched()
    job = FrameworkJob(place.socket, place.memory)
    job._join(place.process, place.token)  # noqa: SLF001
    return job
