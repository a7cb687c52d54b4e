"""Checkpoints on a shared file system that no outdated writer can publish or overwrite.

::

    DIRECTORY/step-000000000100-run-0002/       published: whole, never changed again
    DIRECTORY/.fabric/run-00000002/             a run of the job has claimed this number
    DIRECTORY/.fabric/generation-00000002-…3/   its generation 3 has begun a checkpoint
    DIRECTORY/.fabric/staging-00000002-…3-ID/   what a writer of that generation writes

A writer holds a *fencing token*, ``(run, generation)``: run 2 is newer than run 1, and generation 3
of a run newer than 2. It claims its token, then takes away what writers with lower tokens have
staged. It publishes by one rename, after it has seen that nobody has claimed a higher token.

An old writer either staged its directory before the newer one looked, so its rename finds nothing;
or after that, so it sees the claim. Each side first writes and then looks. Neither needs a clock.

The file system has to offer: a rename of a directory that is atomic and refuses a target that is
not empty; an atomic mkdir; a listing that shows all of that as soon as the reader itself has made
an entry in the same directory. POSIX and NFS offer it; an object store behind a mount does not.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "fabric-checkpoint.json"
VERSION = 1

_MOST_BYTES = 16 * 1024 * 1024  # of a manifest: others may write the directory
_CONTROL = ".fabric"
_OWNER = "owner.json"
_PUBLISHED = re.compile(r"step-(\d{12})-run-(\d{4,8})\Z")
_RUN = re.compile(r"run-(\d{8})\Z")
_GENERATION = re.compile(r"generation-(\d{8})-(\d{8})\Z")
_STAGING = re.compile(r"staging-(\d{8})-(\d{8})-[0-9a-f]+\Z")


class CheckpointRefusedError(Exception):
    """This checkpoint must not be published. The text says why, and who is newer."""


@dataclass(frozen=True, order=True)
class Token:
    """A fencing token: that of a later run, or of a later generation of a run, is higher."""

    run: int
    generation: int

    def __str__(self) -> str:
        return f"generation {self.generation} of run {self.run}"


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint: ``step`` optimizer steps are in it."""

    path: Path
    step: int
    token: Token
    job: str


@dataclass(frozen=True)
class Staging:
    """A private directory that may become a checkpoint."""

    path: Path
    token: Token


class CheckpointDirectory:
    """The checkpoints of one job, as one of its writers sees them.

    ``run`` names this run of the job: all its processes say the same, and no other run does.
    """

    def __init__(self, directory: Path, job: str, run: str) -> None:
        self._directory = directory
        self._control = directory / _CONTROL
        self._job = job
        self._run = run

    @property
    def directory(self) -> Path:
        """Where they are."""
        return self._directory

    def claim(self, generation: int, confirm: Callable[[], object]) -> Token:
        """The token of ``generation``; nobody with a lower one can publish any more.

        ``confirm`` raises ``CheckpointRefusedError`` where ``generation`` is not the newest.
        Raises that also for a directory of another job and a newer token, and ``OSError``.
        """
        self._control.mkdir(parents=True, exist_ok=True)
        run = self._claim_run(confirm)
        if not 0 < generation < 10**8:
            raise ValueError(f"generation {generation} is out of range")
        token = Token(run, generation)
        (self._control / f"generation-{run:08d}-{generation:08d}").mkdir(exist_ok=True)
        self.check(token)
        self._fence_older(token)
        return token

    def stage(self, token: Token) -> Staging:
        """A new private directory. Raises ``OSError``."""
        path = self._control / _staging_name(token)
        path.mkdir()
        return Staging(path, token)

    def check(self, token: Token) -> None:
        """Raises ``CheckpointRefusedError`` where a higher token is claimed."""
        newest = max(self._claimed(), default=token)
        if newest > token:
            raise CheckpointRefusedError(
                f"{self._directory}: {newest} of job {self._job} writes checkpoints now; this is "
                f"{token}"
            )

    def restage(self, staging: Staging, token: Token) -> Staging:
        """The same directory for a newer generation of the same writer."""
        path = self._control / _staging_name(token)
        try:
            staging.path.rename(path)
        except FileNotFoundError:
            raise self._taken_away(staging) from None
        return Staging(path, token)

    def seal(self, staging: Staging, step: int) -> None:
        """Write the manifest, and all of ``staging`` to stable storage.

        Raises ``CheckpointRefusedError`` where it was taken away, and ``OSError``.
        """
        try:
            files = {
                str(path.relative_to(staging.path)): path.stat().st_size
                for path in sorted(staging.path.rglob("*"))
                if path.is_file()
            }
            manifest = {
                "version": VERSION,
                "job": self._job,
                "run": staging.token.run,
                "generation": staging.token.generation,
                "step": step,
                "name": staging.path.name,
                "files": files,
            }
            (staging.path / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
            for path in [*staging.path.rglob("*"), staging.path]:
                _flush(path)
        except FileNotFoundError:
            if staging.path.exists():
                raise
            raise self._taken_away(staging) from None

    def publish(self, staging: Staging, step: int, *, repeats: bool = False) -> Checkpoint:
        """Publish a sealed ``staging``. Raises ``CheckpointRefusedError``, ``OSError``.

        ``repeats``: a step may be run again. What this run has published of it then stays, and
        ``staging`` goes.
        """
        token = staging.token
        target = self._directory / f"step-{step:012d}-run-{token.run:04d}"
        self.check(token)
        try:
            staging.path.rename(target)
        except OSError as error:
            # A file server may do what was asked, and lose its answer.
            mine = _read(target / MANIFEST).get("name") == staging.path.name
            if not mine and error.errno == errno.ENOENT:
                raise self._taken_away(staging) from None
            if not mine and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                known = _published(target)
                if repeats and known is not None and known.token <= token:
                    self.discard(staging)
                    return known
                raise CheckpointRefusedError(f"{target} is published already") from None
            if not mine:
                raise
        _flush(self._directory)
        _flush(self._control)
        return Checkpoint(target, step, token, self._job)

    def discard(self, staging: Staging) -> None:
        """Remove what was not published."""
        shutil.rmtree(staging.path, ignore_errors=True)

    def _claim_run(self, confirm: Callable[[], object]) -> int:
        """The number of this run; the next free one when it has none.

        The next number is read *before* this run is confirmed to be the newest, and only that one
        is taken. So a run that was frozen in between never gets a higher one than its successor.
        """
        while True:
            owners = {
                int(found[1]): _read(self._control / found[0] / _OWNER)
                for found in map(_RUN.match, self._list())
                if found
            }
            for number, owner in owners.items():
                if owner.get("run") == self._run:
                    return number
            last = max(owners, default=0)
            if last and owners[last].get("job") != self._job:
                raise CheckpointRefusedError(
                    f"{self._directory} holds checkpoints of job {owners[last].get('job')!r:.80}, "
                    f"this is {self._job}"
                )
            confirm()
            claim = self._control / f"claim-{secrets.token_hex(8)}"
            claim.mkdir()
            (claim / _OWNER).write_text(json.dumps({"job": self._job, "run": self._run}))
            _flush(claim / _OWNER)
            try:
                claim.rename(self._control / f"run-{last + 1:08d}")
            except OSError as error:
                shutil.rmtree(claim, ignore_errors=True)
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
                    raise

    def _claimed(self) -> list[Token]:
        names = self._list()
        runs = [Token(int(found[1]), 0) for found in map(_RUN.match, names) if found]
        return runs + [_token(found) for found in map(_GENERATION.match, names) if found]

    def _fence_older(self, token: Token) -> None:
        """Take away what writers with lower tokens have staged; then their claims."""
        names = self._list()
        for found in map(_STAGING.match, names):
            if found and _token(found) < token:
                fenced = self._control / f"fenced-{secrets.token_hex(8)}"
                try:
                    (self._control / found[0]).rename(fenced)
                except FileNotFoundError:
                    continue  # published, or taken away by another one
                shutil.rmtree(fenced, ignore_errors=True)
        for name in names:
            found = _GENERATION.match(name)
            if (found and _token(found) < token) or name.startswith("fenced-"):
                shutil.rmtree(self._control / name, ignore_errors=True)

    def _list(self) -> list[str]:
        """Names under control. An entry of our own first: no cache of the client is older."""
        mark = self._control / f"check-{secrets.token_hex(8)}"
        mark.mkdir()
        try:
            return sorted(entry.name for entry in self._control.iterdir())
        finally:
            with contextlib.suppress(FileNotFoundError):
                mark.rmdir()

    def _taken_away(self, staging: Staging) -> CheckpointRefusedError:
        newest = max(self._claimed(), default=staging.token)
        return CheckpointRefusedError(
            f"{self._directory}: {newest} of job {self._job} took away what {staging.token} wrote"
        )


def newest_checkpoint(directory: str | os.PathLike[str]) -> Checkpoint | None:
    """The newest whole checkpoint in ``directory``: of the latest run, then of the highest step.

    None: there is none. A directory whose files are not those that were published is passed over.
    """
    root = Path(directory)
    paths = root.iterdir() if root.is_dir() else ()
    found = [one for path in paths if (one := _published(path)) is not None]
    return max(found, key=lambda one: (one.token, one.step), default=None)


def _published(path: Path) -> Checkpoint | None:
    """The checkpoint in the directory ``path``, if it is one and whole."""
    name = _PUBLISHED.match(path.name)
    if name is None:
        return None
    manifest = _read(path / MANIFEST)
    if manifest.get("version") != VERSION or not _is_whole(path, manifest.get("files")):
        return None
    try:
        token = Token(int(manifest["run"]), int(manifest["generation"]))
        one = Checkpoint(path, int(manifest["step"]), token, str(manifest["job"]))
    except (KeyError, TypeError, ValueError):
        return None
    return one if (one.step, token.run) == (int(name[1]), int(name[2])) else None


def _is_whole(path: Path, files: object) -> bool:
    if not isinstance(files, dict):
        return False
    try:
        return all((path / name).stat().st_size == size for name, size in files.items())
    except (OSError, TypeError, ValueError):
        return False


def _token(found: re.Match[str]) -> Token:
    return Token(int(found[1]), int(found[2]))


def _staging_name(token: Token) -> str:
    return f"staging-{token.run:08d}-{token.generation:08d}-{secrets.token_hex(8)}"


def _read(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty where it is not there or is none."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        data = json.loads(content) if len(content) <= _MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _flush(path: Path) -> None:
    """Write a file or directory to stable storage."""
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not every one takes directories
            raise
    finally:
        os.close(descriptor)
