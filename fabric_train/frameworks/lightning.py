"""``Trainer.fit`` of Lightning, whose loop survives the loss of a rank.

::

    job = fabric_train.join_framework()
    trainer = Trainer(strategy="ddp", ...)
    with lightning.takeover(trainer, job):
        trainer.fit(module, loader)

A rank that lives runs its loop as ever. An attempt ends inside of the call that steps the
optimizer. A replacement runs the script anew, with the progress, the metrics and the callbacks'
states that the lost rank has left with its agent. It takes the last batch that the lost rank has
trained once more, but neither computes nor steps: what ``training_step`` had logged and returned is
among what it got. From there on it does all that its peers do, schedulers, logging, validation and
checkpoints of that batch among it.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fabric_train.frameworks.numbers import encoded_numbers, restore_numbers
from fabric_train.frameworks.refusal import RefusedTrainingError, refuse_second_loop
from fabric_train.frameworks.versions import check_version
from fabric_train.frameworks.wrapping import wrap
from fabric_train.state.plain_values import NotPlainError, pack, unpack

if TYPE_CHECKING:
    from fabric_train.rank.framework_job import FrameworkJob

_METRIC = (
    "fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph",
    "add_dataloader_idx", "dataloader_idx", "metric_attribute",
)  # fmt: skip
_SHOWN = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics")


@contextlib.contextmanager
def takeover(trainer: Any, job: FrameworkJob) -> Iterator[None]:
    """The one ``trainer.fit()`` inside survives the loss of ranks; the job ends with the block.

    Raises ``UntestedVersionError``, ``RefusedTrainingError``.
    """
    hook(trainer, job)
    yield
    job.end_loop()


def hook(trainer: Any, job: FrameworkJob) -> None:
    """As ``takeover``; the caller ends the loop."""
    import lightning.pytorch as pl

    refuse_second_loop(job)
    check_version("lightning", pl.__version__)
    wrap(trainer, {"_run_stage": _Loop(trainer, job).run_stage})


def _check(trainer: Any) -> None:
    from lightning.pytorch.plugins.precision import Precision
    from lightning.pytorch.strategies import DDPStrategy

    reasons = {
        f"its strategy is {type(trainer.strategy).__name__}, and not DDPStrategy": (
            type(trainer.strategy) is not DDPStrategy
        ),
        "manual optimization": not trainer.lightning_module.automatic_optimization,
        f"it has {len(trainer.optimizers)} optimizers": len(trainer.optimizers) != 1,
        f"precision {trainer.precision}": type(trainer.precision_plugin) is not Precision,
        "fit(ckpt_path=…) is not supported yet": trainer.ckpt_path is not None,
        "reload_dataloaders_every_n_epochs": trainer.reload_dataloaders_every_n_epochs != 0,
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
        self._resumes = False  # a replacement has yet to find its place in the data
        self._replays = False  # a replacement takes the last batch once more
        self._numbers = b""  # random generators of the step that begins
        self._epoch_numbers = b""  # and when the epoch's iterator was made
        self._progress: dict[str, Any] = {}  # where the present batch begins
        self._stepped = 0  # what is logged as the step then
        self._output: dict[str, Any] = {}  # of training_step

    @property
    def _fit(self) -> Any:
        return self._trainer.fit_loop

    def run_stage(self, run: Callable[[], Any]) -> Any:
        """In place of ``_run_stage``: all is built, and nothing is trained yet."""
        trainer, job = self._trainer, self._job
        if not trainer.training:
            return run()
        _check(trainer)
        self._set_up_data()
        schedulers = [one.scheduler for one in trainer.lr_scheduler_configs]
        job.protect(
            model=trainer.strategy.model,
            optimizer=trainer.optimizers[0],
            local={"trainer": self},
            **{f"scheduler{place}": one for place, one in enumerate(schedulers)},
        )
        replaces = job.replaces
        self._rehearse()
        epochs = self._fit.epoch_loop
        wrap(trainer.precision_plugin, {"optimizer_step": self._optimizer_step})
        wrap(epochs, {"advance": self._advance, "on_run_start": self._on_run_start})
        wrap(epochs.automatic_optimization, {
            "run": self._optimize, "_training_step": self._training_step,
        })  # fmt: skip
        if not (replaces and self._given["step"]):
            self._begin_data()
            job.begin_attempt()
            return run()
        self._resumes = self._replays = True
        self._numbers = encoded_numbers()
        trainer.num_sanity_val_steps = 0
        self._restore_epoch()
        job.stay_alone()  # until the last batch is taken once more
        return run()

    def _set_up_data(self) -> None:
        """Make loaders, with nobody else: all ranks do so here, and replacements later."""
        self._epoch_numbers = encoded_numbers()
        with self._job.alone():
            self._fit.setup_data()
        restore_numbers(self._epoch_numbers)

    def _begin_data(self) -> None:
        """The first epoch's data from its beginning: the rehearsal has taken a batch."""
        restore_numbers(self._epoch_numbers)
        iter(self._fit._data_fetcher)  # noqa: SLF001

    def _rehearse(self) -> None:
        from lightning.pytorch.trainer import call

        trainer = self._trainer
        module, connector = trainer.lightning_module, trainer._logger_connector  # noqa: SLF001
        batch: list[Any] = []

        def rehearse() -> None:
            if not batch:
                loader = self._fit._combined_loader  # noqa: SLF001
                batch.append(next(iter(loader))[0])
            with _unchanged(module):
                ready = trainer.precision_plugin.convert_input(batch[0])
                ready = module._on_before_batch_transfer(ready, dataloader_idx=0)  # noqa: SLF001
                ready = call._call_strategy_hook(  # noqa: SLF001
                    trainer, "batch_to_device", ready, dataloader_idx=0
                )
                connector.on_batch_start(ready)
                arguments = self._fit.epoch_loop._build_kwargs(  # noqa: SLF001
                    OrderedDict(), ready, 0
                )
                automatic = self._fit.epoch_loop.automatic_optimization
                result = automatic._training_step(arguments)  # noqa: SLF001
                call._call_strategy_hook(  # noqa: SLF001
                    trainer, "backward", result.closure_loss, trainer.optimizers[0]
                )
            trainer._results.clear()  # noqa: SLF001
            connector.reset_results()
            connector.reset_metrics()

        module.train()
        self._job.begin_loop(rehearse)

    # What ``Trainer`` calls, with its own method before its arguments.

    def _on_run_start(self, start: Any, fetcher: Any) -> None:
        """An epoch begins."""
        if not self._resumes:
            if self._trainer.current_epoch > 0:
                self._epoch_numbers = encoded_numbers()
            start(fetcher)
            return
        self._resumes = False
        self._epoch_numbers = self._given["epoch_numbers"]
        restore_numbers(self._epoch_numbers)
        start(fetcher)
        if self._trainer.current_epoch == 0:
            iter(fetcher)
        for _ in range(self._given["progress"]["epoch_loop.batch_progress"]["current"]["ready"]):
            next(fetcher)
        _load_progress(self._fit, self._given["progress"], "")
        self._fit.epoch_loop._batches_that_stepped = self._given["stepped"]  # noqa: SLF001

    def _advance(self, advance: Any, fetcher: Any) -> Any:
        self._progress = _progress_of(self._fit, "")
        self._stepped = self._fit.epoch_loop._batches_that_stepped  # noqa: SLF001
        return advance(fetcher)

    def _training_step(self, step: Any, arguments: Any) -> Any:
        result = step(arguments)
        self._output = result.asdict()
        return result

    def _optimizer_step(
        self, _step: Any, optimizer: Any, model: Any, closure: Any, **more: Any
    ) -> Any:
        """The closure computes; then the gate; then the step, of which the next attempt knows."""
        plugin = self._trainer.precision_plugin
        result = plugin._wrap_closure(model, optimizer, closure)  # noqa: SLF001
        optimizer.step(**more)
        self._job.end_attempt()
        self._job.begin_attempt()
        return result

    def _optimize(self, run: Any, optimizer: Any, index: int, arguments: Any) -> Any:
        if not self._replays:
            return run(optimizer, index, arguments)
        self._replays = False
        progress = self._fit.epoch_loop.automatic_optimization.optim_progress.optimizer
        if index % self._trainer.accumulate_grad_batches == 0:
            progress.zero_grad.increment_ready()
            progress.zero_grad.increment_started()
            progress.zero_grad.increment_completed()
        progress.step.increment_ready()
        self._restore_metrics()
        restore_numbers(self._numbers)
        self._job.begin_attempt()
        progress.step.increment_completed()
        return self._output

    # Rank-local state of the loop: see ``state.rank_local.Stateful``.

    def state_dict(self) -> dict[str, Any]:
        """Where this batch began, and what it has computed."""
        if not self._progress:
            return {"step": 0}
        trainer = self._trainer
        connector = trainer._logger_connector  # noqa: SLF001
        return {
            "step": self._fit.epoch_loop.global_step + 1,
            "progress": self._progress,
            "stepped": self._stepped,
            "epoch": trainer.current_epoch,
            "epoch_numbers": self._epoch_numbers,
            "output": _plain("what training_step returns", self._output),
            "metrics": [_metric(key, one) for key, one in trainer._results.items()],  # noqa: SLF001
            "shown": [_plain("what is logged", getattr(connector, name)) for name in _SHOWN],
            "first": connector._first_loop_iter,  # noqa: SLF001
            "function": connector._current_fx,  # noqa: SLF001
            "callbacks": {
                one.state_key: _plain(f"the state of {type(one).__name__}", one.state_dict())
                for one in trainer.callbacks
            },
            "stops": trainer.should_stop,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep what another process gave, until the loop asks for it."""
        self._given = state

    def covers(self, one: object) -> bool:
        """Its own loaders and metrics."""
        kind = type(one)
        if kind.__module__.startswith(("lightning.", "torchmetrics.")):
            return one is not self._trainer.lightning_module
        sources = (self._fit._combined_loader, self._fit.epoch_loop.val_loop._combined_loader)  # noqa: SLF001
        loaders = [each for source in sources if source is not None for each in source.flattened]
        return getattr(one, "_dataset", None) in [loader.dataset for loader in loaders]

    def _restore_epoch(self) -> None:
        """As at the end of the epoch before; the loop begins the epoch itself."""
        epoch = self._given["epoch"]
        for one in (self._fit.epoch_progress.current, self._fit.epoch_progress.total):
            one.ready = one.started = one.processed = one.completed = epoch
        for callback in self._trainer.callbacks:
            callback.load_state_dict(unpack(self._given["callbacks"][callback.state_key]))
        self._trainer.should_stop = self._given["stops"]

    def _restore_metrics(self) -> None:
        trainer = self._trainer
        connector = trainer._logger_connector  # noqa: SLF001
        results = trainer._results  # noqa: SLF001
        for one in self._given["metrics"]:
            results[one["key"]] = _made(one, trainer.strategy.reduce)
        for name, shown in zip(_SHOWN, self._given["shown"], strict=True):
            setattr(connector, name, unpack(shown))
        connector._first_loop_iter = self._given["first"]  # noqa: SLF001
        connector._current_fx = self._given["function"]  # noqa: SLF001
        self._output = unpack(self._given["output"])


@contextlib.contextmanager
def _unchanged(module: Any) -> Iterator[None]:
    """Lists and dictionaries that ``module`` keeps are afterwards as before."""
    kept = {name: one for name, one in vars(module).items() if type(one) in (list, dict, set)}
    copies = {name: one.copy() for name, one in kept.items() if not name.startswith("_")}
    yield
    for name, before in copies.items():
        kept[name].clear()
        (kept[name].extend if isinstance(before, list) else kept[name].update)(before)


def _plain(what: str, value: Any) -> bytes:
    try:
        return pack(value)
    except NotPlainError as error:
        raise RefusedTrainingError(f"{what} cannot be handed over: {error}") from None


def _progress_of(loop: Any, prefix: str) -> dict[str, Any]:
    """Progress of ``loop`` and of those in it, by its path; plain numbers."""
    from lightning.pytorch.loops.loop import _Loop as Theirs
    from lightning.pytorch.loops.progress import _BaseProgress

    found: dict[str, Any] = {}
    for name, one in vars(loop).items():
        if isinstance(one, _BaseProgress):
            found[prefix + name] = one.state_dict()
        elif isinstance(one, Theirs):
            found |= _progress_of(one, f"{prefix}{name}.")
    return found


def _load_progress(loop: Any, progress: dict[str, Any], prefix: str) -> None:
    from lightning.pytorch.loops.loop import _Loop as Theirs
    from lightning.pytorch.loops.progress import _BaseProgress

    for name, one in vars(loop).items():
        if isinstance(one, _BaseProgress):
            one.load_state_dict(progress[prefix + name])
        elif isinstance(one, Theirs):
            _load_progress(one, progress, f"{prefix}{name}.")


def _metric(key: str, one: Any) -> dict[str, Any]:
    if not one.is_tensor:
        raise RefusedTrainingError(
            f"self.log({one.meta.name!r}, …) of a {type(one.value).__name__} in training_step: a "
            "replacement would not have what it has summed up. Log a tensor"
        )
    meta = one.meta
    return {
        "key": key,
        "meta": {name: getattr(meta, name) for name in _METRIC},
        "reduce": meta.reduce_fx.__name__,
        "sync": meta.sync.should,
        "alone": meta.sync.rank_zero_only,
        "value": one.value,
        "count": getattr(one, "cumulated_batch_size", None),
        "cache": one._forward_cache,  # noqa: SLF001
        "reset": one.has_reset,
        "updates": one._update_count,  # noqa: SLF001
    }


def _made(given: dict[str, Any], reduce: Any) -> Any:
    from lightning.pytorch.trainer.connectors.logger_connector import result

    meta = result._Metadata(reduce_fx=given["reduce"], **given["meta"])  # noqa: SLF001
    meta.sync = result._Sync(  # noqa: SLF001
        _should=given["sync"], fn=reduce, rank_zero_only=given["alone"]
    )
    made = result._ResultMetric(meta, is_tensor=True)  # noqa: SLF001
    made.value, made.has_reset = given["value"], given["reset"]
    if given["count"] is not None:
        made.cumulated_batch_size = given["count"]
    made._forward_cache = given["cache"]  # noqa: SLF001
    made._update_count = given["updates"]  # noqa: SLF001
    return made
