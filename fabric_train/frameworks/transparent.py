"""Runs a script, of which no line is changed, as a process of a job: ``fabric-run --transparent``.

    python -m fabric_train.frameworks.transparent SCRIPT [ARGUMENTS]

The process joins its job, and hooks the frameworks that it knows when the script imports them. The
script's first training loop is taken over; a loop of its own is refused at its first step.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabric_train.frameworks import import_hooks, running
from fabric_train.frameworks.scripts import RefusedScriptError, check_script, imports_of, text_of
from fabric_train.messages.plain_text import say

if TYPE_CHECKING:
    from fabric_train.rank.framework_job import FrameworkJob

_WARM = {
    "transformers": ("transformers", "transformers.trainer"),
    "lightning": ("lightning.pytorch",),
    "accelerate": ("accelerate",),
    "datasets": ("datasets",),
}
"""What a spare imports before it has a rank, by what the script imports."""


def main(argv: Sequence[str]) -> None:
    """Run ``argv``: a script and its arguments."""
    script = argv[0]
    text = text_of(script)
    check_script(script, text)
    for name in sorted(imports_of(text) & _WARM.keys()):
        for module in _WARM[name]:
            importlib.import_module(module)
    from fabric_train import join_framework

    job = join_framework()
    hooks = _Hooks(job)
    import_hooks.on_import({
        "transformers.trainer": hooks.hook_trainer,
        "lightning.pytorch.trainer.trainer": hooks.hook_lightning,
        "pytorch_lightning.trainer.trainer": hooks.hook_lightning,
    })  # fmt: skip
    job.refuse_own_loops(
        f"{script} has a loop of its own: --transparent takes over those of transformers' Trainer "
        "and of Lightning. Protect it by fabric_train.join(), without --transparent"
    )
    sys.argv[:] = argv
    sys.path[0] = str(Path(script).resolve().parent)
    running.script = script
    runpy.run_path(script, run_name="__main__")
    if not job.has_loop:
        job.give_up(f"{script} has ended without a training loop that --transparent takes over")
    job.end_loop()


class _Hooks:
    """What is done to the frameworks' classes."""

    def __init__(self, job: FrameworkJob) -> None:
        self._job = job

    def hook_trainer(self, module: Any) -> None:
        """Let the loop of transformers' ``Trainer`` be taken over."""
        from fabric_train.frameworks import hugging_face

        self._hook(module.Trainer, "_inner_training_loop", hugging_face.hook)

    def hook_lightning(self, module: Any) -> None:
        """Let the loop of Lightning's ``Trainer`` be taken over."""
        from fabric_train.frameworks import lightning

        self._hook(module.Trainer, "_fit_impl", lightning.hook)

    def _hook(self, kind: Any, name: str, hook: Any) -> None:
        theirs, job = getattr(kind, name), self._job

        def call(trainer: Any, *args: Any, **named: Any) -> Any:
            hook(trainer, job)
            return theirs(trainer, *args, **named)

        setattr(kind, name, call)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RefusedScriptError as error:
        say(f"fabric-run: {error}")
        sys.exit(2)
