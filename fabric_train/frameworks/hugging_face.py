"""``Trainer`` of transformers, whose loop survives the loss of a rank.

::

    job = fabric_train.join_framework()
    trainer = Trainer(...)
    with hugging_face.takeover(trainer, job):
        trainer.train()

A rank that lives runs its loop as ever: what is hooked only says where a step begins. A replacement
runs the script anew, and ``Trainer`` positions itself by its own resume. In place of a checkpoint's
files it gets the state of a rank that lives: weights, optimizer and schedule from any one, its own
position, random numbers and sums of losses from what the lost rank has left with its agent. It goes
on where a step has just been counted, so callbacks, logging, evaluation and checkpoints of that
step are run by the replacement, too: their collectives meet those of its peers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fabric_train.frameworks.numbers import encoded_numbers, restore_numbers
from fabric_train.frameworks.refusal import RefusedTrainingError, refuse_second_loop
from fabric_train.frameworks.versions import check_version
from fabric_train.frameworks.wrapping import wrap
from fabric_train.state.rank_local import RandomStates

if TYPE_CHECKING:
    from fabric_train.rank.framework_job import FrameworkJob

_RESUMES = "what a rank that lives has"
"""In place of the path of a checkpoint."""
_PLACE = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks", "log_history")


@contextlib.contextmanager
def takeover(trainer: Any, job: FrameworkJob) -> Iterator[None]:
    """The one ``trainer.train()`` inside survives the loss of ranks; the job ends with the block.

    Raises ``UntestedVersionError``, ``RefusedTrainingError``.
    """
    hook(trainer, job)
    yield
    job.end_loop()


def hook(trainer: Any, job: FrameworkJob) -> None:
    """As ``takeover``; the caller ends the loop."""
    import accelerate
    import transformers

    refuse_second_loop(job)
    check_version("transformers", transformers.__version__)
    check_version("accelerate", accelerate.__version__)
    _check(trainer)
    _Loop(trainer, job).hook()


def _check(trainer: Any) -> None:
    args = trainer.args
    reasons = {
        "it shards its model (FSDP)": trainer.is_fsdp_enabled,
        "it trains with DeepSpeed": trainer.is_deepspeed_enabled,
        "auto_find_batch_size runs a step again": args.auto_find_batch_size,
        "its data set has no length": not hasattr(trainer.train_dataset, "__len__"),
        "use_seedable_sampler is off: the order of its data is kept nowhere": (
            not args.accelerator_config.use_seedable_sampler
        ),
        "dispatch_batches: one rank reads the data of all": (
            args.accelerator_config.dispatch_batches
        ),
        "ignore_data_skip: a replacement has to find its place in the data": args.ignore_data_skip,
        "it trains on one process": args.world_size < 2,
    }
    for reason, holds in reasons.items():
        if holds:
            raise RefusedTrainingError(f"this Trainer cannot be taken over: {reason}")


class _Loop:
    """Hooks of one ``Trainer``, and the rank-local state of its loop."""

    def __init__(self, trainer: Any, job: FrameworkJob) -> None:
        self._trainer = trainer
        self._job = job
        self._given: dict[str, Any] = {}  # to a replacement
        self._replays = False  # a replacement does again what follows the step it begins behind
        self._resumes = False  # a replacement has yet to find its place in the data
        self._dataloader: Any = None
        self._prepared: Any = None
        self._epoch = 0
        self._batches = 0  # that this epoch has given
        self._in_epoch = 1
        self._epoch_numbers = b""  # random generators when the epoch's iterator was made
        self._grad_norm: float | None = None
        self._rate: float | None = None
        self._numbers = b""  # random generators of the step that begins
        self._history: list[str] = []  # lines of the log, encoded

    def hook(self) -> None:
        """Wrap those methods of the trainer that the loop goes through."""
        wraps: dict[str, Callable[..., Any]] = {
            "get_train_dataloader": self._get_train_dataloader,
            "_init_training_state": self._init_training_state,
            "_prepare_for_training": self._prepare_for_training,
            "_run_epoch": self._run_epoch,
            "get_batch_samples": self._get_batch_samples,
            "_get_grad_norm": self._get_grad_norm,
            "_maybe_log_save_evaluate": self._maybe_log_save_evaluate,
            "_load_rng_state": self._load_rng_state,
        }
        wrap(self._trainer, wraps)

    # What ``Trainer`` calls, with its own method before its arguments.

    def _get_train_dataloader(self, get: Any) -> Any:
        self._dataloader = get()
        return self._dataloader

    def _init_training_state(
        self, init: Any, max_steps: int, updates: int, epochs: int, resumes: Any, trial: Any
    ) -> Any:
        """The state is made; prepare all else now, for the place in the data is asked for here."""
        if resumes is not None:
            raise RefusedTrainingError(
                "train(resume_from_checkpoint=…) of a job that is taken over is not supported yet"
            )
        place = init(max_steps, updates, epochs, resumes, trial)
        trainer, job = self._trainer, self._job
        prepare = type(trainer)._prepare_for_training  # noqa: SLF001
        self._prepared = prepare(trainer, max_steps, self._dataloader, None)
        optimizer, scaler = trainer.optimizer, trainer.accelerator.scaler
        job.protect(
            model=trainer.model_wrapped,
            optimizer=getattr(optimizer, "optimizer", optimizer),
            scheduler=trainer.lr_scheduler,
            local={"trainer": self},
            **({"scaler": scaler} if scaler is not None else {}),
        )
        replaces = job.replaces
        batch: list[Any] = []

        def rehearse() -> None:
            if not batch:
                batch.append(next(iter(self._dataloader.base_dataloader)))
            trainer.current_gradient_accumulation_steps = 1
            trainer.accelerator.gradient_state._set_sync_gradients(True)  # noqa: SLF001
            items = trainer._get_num_items_in_batch(batch, trainer.args.device)  # noqa: SLF001
            trainer.training_step(trainer.model_wrapped, batch[0], items)

        job.begin_loop(rehearse)
        self._insert_callback()
        if not (replaces and self._given["steps"]):
            job.begin_attempt()
            return place
        self._replays = self._resumes = True
        self._restore_state()
        trainer.args.eval_on_start = False  # the lost rank has done so
        self._numbers = encoded_numbers()
        job.stay_alone()
        return self._given["epoch"], self._given["batches"]

    def _prepare_for_training(self, _prepare: Any, *_: Any) -> Any:
        return self._prepared

    def _run_epoch(self, run: Any, **how: Any) -> Any:
        self._epoch, self._in_epoch = how["epoch"], how["steps_in_epoch"]
        self._batches = 0
        if not self._replays:
            self._resumes = False
            self._epoch_numbers = encoded_numbers()
            return run(**how)
        self._batches = self._given["batches"]
        self._epoch_numbers = self._given["epoch_numbers"]
        how["resume_from_checkpoint"] = _RESUMES
        restore_numbers(self._numbers)
        self._restore_sums()
        self._job.begin_attempt()
        self._do_again(how)
        control = self._trainer.control
        ended = self._batches >= self._in_epoch
        if ended or control.should_epoch_stop or control.should_training_stop:
            how["num_update_steps_per_epoch"] = 0  # nothing more of this epoch
        return run(**how)

    def _do_again(self, how: dict[str, Any]) -> None:
        """What the lost rank has done, or not, between its last step and the next one."""
        trainer = self._trainer
        trainer.control.should_log = trainer.control.should_evaluate = False
        trainer.control.should_save = False
        trainer.control = trainer.callback_handler.on_step_end(
            trainer.args, trainer.state, trainer.control
        )
        trainer._maybe_log_save_evaluate(  # noqa: SLF001
            trainer._tr_loss, None, how["model"], how["trial"], how["epoch"],  # noqa: SLF001
            how["ignore_keys_for_eval"], how["start_time"],
        )  # fmt: skip
        self._replays = False

    def _get_batch_samples(self, get: Any, batches: Any, count: int, device: Any) -> Any:
        begins, resumes, self._resumes = not self._batches, self._resumes, False
        if resumes:
            numbers = encoded_numbers()
            restore_numbers(self._epoch_numbers)
            with self._job.alone():
                first = next(batches, None)
            restore_numbers(numbers)
            batches = batches if first is None else itertools.chain([first], batches)
        before = RandomStates.now()
        samples, items = get(batches, count, device)
        self._batches += len(samples)
        if not (begins or resumes) and not before.is_now():
            raise RefusedTrainingError(
                "the data set draws random numbers in the process that trains: a replacement would "
                "draw others. Use dataloader_num_workers, or a generator seeded by the index"
            )
        return samples, items

    def _get_grad_norm(self, get: Any, *args: Any, **more: Any) -> Any:
        norm = get(*args, **more)
        self._grad_norm = None if norm is None else float(norm)
        return norm

    def _maybe_log_save_evaluate(
        self, do: Any, loss: Any, norm: Any, *more: Any, learning_rate: Any = None
    ) -> Any:
        if self._given and self._trainer.state.global_step == self._given["steps"]:
            norm = self._given["grad_norm"] if norm is None else norm
            learning_rate = self._given["rate"] if learning_rate is None else learning_rate
        return do(loss, norm, *more, learning_rate=learning_rate)

    def _load_rng_state(self, load: Any, path: Any) -> Any:
        return None if path is _RESUMES else load(path)

    def _insert_callback(self) -> None:
        """Before all others: what they do at a step's end is of the next attempt."""
        from transformers import TrainerCallback

        loop = self

        class StepCounted(TrainerCallback):
            """Ends an attempt where ``Trainer`` has counted its step."""

            def on_step_end(self, *_: Any, **__: Any) -> None:
                """All that belongs to the step is done."""
                if not loop._replays:
                    loop._job.end_attempt()
                    loop._job.begin_attempt()

        self._trainer.callback_handler.callbacks.insert(0, StepCounted())

    # Rank-local state of the loop: see ``state.rank_local.Stateful``.

    def state_dict(self) -> dict[str, Any]:
        """The loop where its next attempt begins: also before the gate, as it will be then."""
        trainer, job = self._trainer, self._job
        state = {
            one.name: getattr(trainer.state, one.name)
            for one in dataclasses.fields(trainer.state)
            if one.name not in _PLACE
        }
        if job.before_gate:
            state["global_step"] += 1
            state["epoch"] = self._epoch + self._batches / self._in_epoch
            self._rate = trainer._get_learning_rate()  # noqa: SLF001
        history = trainer.state.log_history
        if len(self._history) > len(history):
            self._history.clear()
        self._history += [json.dumps(one) for one in history[len(self._history) :]]
        loss = getattr(trainer, "_tr_loss", None)
        return {
            "steps": state["global_step"],
            "state": json.dumps(state),
            "history": "\n".join(self._history),
            "callbacks": json.dumps(self._callbacks()),
            "epoch": self._epoch,
            "batches": self._batches,
            "epoch_numbers": self._epoch_numbers,
            "grad_norm": self._grad_norm,
            "rate": self._rate,
            "loss": 0.0 if loss is None else float(loss),
            "total_loss": getattr(trainer, "_total_loss_scalar", 0.0),
            "logged": getattr(trainer, "_globalstep_last_logged", 0),
            "first": getattr(trainer, "_initial_global_step", 0),
            "first_tokens": getattr(trainer, "_initial_num_input_tokens_seen", 0),
            "operations": trainer.current_flos,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep what another process gave, until the loop asks for it."""
        self._given = state

    def covers(self, one: object) -> bool:
        """Its own loaders, and what wraps the optimizer, need nothing but what is kept here."""
        if type(one).__module__.startswith("accelerate."):
            return True
        return getattr(one, "_dataset", None) in (
            self._trainer.train_dataset, self._trainer.eval_dataset
        )  # fmt: skip

    def _callbacks(self) -> list[dict[str, Any]]:
        return [one.state()["attributes"] for one in self._stateful()]

    def _stateful(self) -> list[Any]:
        from transformers.trainer_callback import ExportableState

        known = self._trainer.callback_handler.callbacks
        return [one for one in known if isinstance(one, ExportableState)]

    def _restore_state(self) -> None:
        state = self._trainer.state
        for name, value in json.loads(self._given["state"]).items():
            setattr(state, name, value)
        state.log_history = [json.loads(one) for one in self._given["history"].splitlines()]
        given = json.loads(self._given["callbacks"])
        for callback, attributes in zip(self._stateful(), given, strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)

    def _restore_sums(self) -> None:
        trainer, given = self._trainer, self._given
        trainer._tr_loss.fill_(given["loss"])  # noqa: SLF001
        trainer._total_loss_scalar = given["total_loss"]  # noqa: SLF001
        trainer._globalstep_last_logged = given["logged"]  # noqa: SLF001
        trainer._initial_global_step = given["first"]  # noqa: SLF001
        trainer._initial_num_input_tokens_seen = given["first_tokens"]  # noqa: SLF001
        trainer.current_flos = given["operations"]
        self._grad_norm, self._rate = given["grad_norm"], given["rate"]
