"""The configuration in force and where it came from; the old one stays when a new one is wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabricd.config.loader import (
    Config,
    ConfigError,
    Problem,
    config_hash,
    files_of,
    load,
    policy_hash,
)


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
    hash: str = ""
    policy: str = ""

    def __post_init__(self) -> None:
        """Note what stands for the configuration."""
        self._describe()

    def reload(self) -> Config:
        """Read the files again and take what they say.

        Raises:
            ConfigError: refused as a whole; the old configuration stands.
        """
        try:
            config = load(self.file)
            self._refuse_fixed(config)
        except ConfigError as error:
            self.refused += 1
            self.problems = tuple(str(problem) for problem in error.problems)
            raise
        self.config = config
        self.reloads += 1
        self.problems = ()
        self.loaded_wall_s = time.time()
        self._describe()
        return config

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

    def _describe(self) -> None:
        self.files = files_of(self.file)
        self.hash, self.policy = config_hash(self.config), policy_hash(self.config)

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


def changed_keys(old: Config, new: Config) -> list[str]:
    """The keys whose values differ, dotted; lists count as one value."""
    return sorted(_changed(old.model_dump(mode="json"), new.model_dump(mode="json"), ""))


def _changed(old: dict[str, Any], new: dict[str, Any], at: str) -> list[str]:
    out = []
    for key in {*old, *new}:
        here = f"{at}.{key}" if at else key
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            out += _changed(before, after, here)
        elif before != after:
            out.append(here)
    return out
