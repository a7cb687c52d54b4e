"""The configuration in force and where it came from; the old one stays when a new one is wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabricd.config.digest import changed_keys, config_hash, policy_hash
from fabricd.config.loader import ConfigError, Loaded, Problem, files_of, read
from fabricd.config.peers_file import FileState
from fabricd.config.tables import Config


@dataclass(frozen=True, slots=True)
class Candidate:
    """A valid configuration that is not in force yet, with all that reading it costs time for.

    Attributes:
        loaded: the configuration and its files.
        hash: of the configuration.
        policy: of what hosts have in common.
        changed: the keys that differ from the configuration in force.
    """

    loaded: Loaded
    hash: str
    policy: str
    changed: list[str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Files that cannot be used, and the version of ``peers_file`` that was read, if one was."""

    error: ConfigError
    peers_file: FileState | None


@dataclass(slots=True)
class ConfigSource:
    """One main file, its overrides, and what became of the last look at them."""

    file: Path
    config: Config
    loaded_wall_s: float = field(default_factory=time.time)
    reloads: int = 0
    refused: int = 0
    """Reloads that were refused."""
    problems: tuple[str, ...] = ()
    """Of the last reload; empty: it was good."""
    files: list[str] = field(default_factory=list)
    peers_file: FileState | None = None
    """The version of ``[paths] peers_file`` that was read last, good or bad; None: none was."""
    hash: str = ""
    policy: str = ""

    def __post_init__(self) -> None:
        """Note what stands for the configuration."""
        self.files = self.files or files_of(self.file)
        self.hash, self.policy = config_hash(self.config), policy_hash(self.config)

    def candidate(self) -> Candidate | Refusal:
        """Read the files again. Nothing changes by that, so any thread may do it."""
        seen: list[FileState] = []
        try:
            loaded = read(self.file, seen=seen.append)
            self._refuse_fixed(loaded.config)
        except ConfigError as error:
            return Refusal(error, seen[-1] if seen else None)
        config = loaded.config
        changed = changed_keys(self.config, config)
        return Candidate(loaded, config_hash(config), policy_hash(config), changed)

    def accept(self, found: Candidate) -> None:
        """This configuration is in force from now on."""
        self.config = found.loaded.config
        self.reloads += 1
        self.problems = ()
        self.loaded_wall_s = time.time()
        self.files = list(found.loaded.files)
        self.peers_file = found.loaded.peers_file
        self.hash, self.policy = found.hash, found.policy

    def refuse(self, found: Refusal) -> None:
        """The old configuration stays in force."""
        self.refused += 1
        self.problems = tuple(str(problem) for problem in found.error.problems)
        self.peers_file = found.peers_file

    def reload(self) -> Config:
        """Read the files again and take what they say.

        Raises:
            ConfigError: refused as a whole; the old configuration stands.
        """
        found = self.candidate()
        if isinstance(found, Refusal):
            self.refuse(found)
            raise found.error
        self.accept(found)
        return self.config

    def document(self) -> dict[str, Any]:
        """For ``status`` and ``config show``."""
        return {
            "file": str(self.file),
            "files": self.files,
            "hash": self.hash,
            "policy_hash": self.policy,
            "loaded_wall_s": self.loaded_wall_s,
            "reloads": self.reloads,
            "refused": self.refused,
            "problems": list(self.problems),
        }

    def _refuse_fixed(self, config: Config) -> None:
        old = self.config
        fixed = [
            ("host.name", old.host.name, config.host.name),
            ("paths.run_dir", old.paths.run_dir, config.paths.run_dir),
            ("paths.state_dir", old.paths.state_dir, config.paths.state_dir),
            ("metrics.listen", old.metrics.listen, config.metrics.listen),
        ]
        problems = [
            Problem(str(self.file), 0, key, f"cannot change without a restart; allowed: {was}")
            for key, was, new in fixed
            if was != new
        ]
        if problems:
            raise ConfigError(problems)
