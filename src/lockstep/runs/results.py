"""Collect the results of a run from the trainer, for its record and its loggers."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn
from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json
from lockstep.checkpointing import read_checkpoint
from lockstep.config.overrides import override_key
from lockstep.config.plan import Plan
from lockstep.errors import NamedFailure
from lockstep.runs.record import JOB, environment
from lockstep.runs.saved import read_choices, read_overrides
from lockstep.runs.shares import dp_rank_and_size

OPTIMIZED = "Optimized/"  # a capital, because TensorBoard sorts tags with capitals first
_SHOWN = ("world_size", "global_batch_size", "lr")  # facts shown in TensorBoard: three and the metric fit into 1280 pixels


class Records(Callback):
    """Base class of callbacks that add to metrics.json, by `facts`.

    Attributes:
        causes: lines that say why several processes can't give the result of one; collected as not_as_one_process.
        ended_by: a line that says why the callback has ended training, or None.
        results: latest value of each metric that training has logged, of the callback that keeps them.
        samples_trained: number of samples that this process has trained on since it started, of the callback that counts them.
    """

    causes: Any = ()
    ended_by: Any = None
    results: Any = {}
    samples_trained: int = 0

    def facts(self) -> Mapping[str, Any]:
        """Return keys and values to add; called on every rank."""
        return {}


class ResultLogger(Logger):
    """A logger that logs a run's result in its own way, and then ends its run."""

    @abstractmethod
    def log_result(self, params: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        """Log hyperparameters, and metrics at the last step."""


def best_checkpoint(trainer: Any) -> Path | None:
    """Return the best checkpoint on disk of the first ModelCheckpoint that monitors a metric, or None."""
    savers = (callback for callback in trainer.callbacks if isinstance(callback, ModelCheckpoint) and callback.monitor)
    paths = (Path(saver.best_model_path) for saver in savers if saver.best_model_path)
    return next((path for path in paths if path.is_file()), None)


def read_best(trainer: Trainer) -> dict[str, Any]:
    """Return the content of the best checkpoint, empty if there is none."""
    path = best_checkpoint(trainer)
    return {} if path is None else read_checkpoint("best checkpoint", path, whole=())


def collect_metrics(trainer: Trainer, best: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of training and validation at the best checkpoint, or the last ones without one, and those of the test.

    Where a test and a validation have logged the same name, the test's becomes test/NAME; if the name begins with "test", the
    validation's becomes val/NAME.
    """
    trained = {name: value for callback in recording(trainer) for name, value in callback.results.items()}
    trained |= best.get("metrics", {})
    latest = logged_numbers(trainer)
    if trainer.state.fn == TrainerFn.TESTING:
        tested = {name for name in latest.keys() & trained.keys() if name.startswith("test")}
        trained = {f"val/{name}" if name in tested else name: value for name, value in trained.items()}
        latest = {f"test/{name}" if name in trained else name: value for name, value in latest.items()}
    return latest | trained


def recording(trainer: Any) -> list[Records]:
    return [callback for callback in trainer.callbacks if isinstance(callback, Records)]


def collect_result(cfg: DictConfig, plan: Plan, trainer: Trainer, seconds: float) -> dict[str, Any]:
    """Return the content of metrics.json for a run that took `seconds`; called on every rank.

    Raise NamedFailure if training has not logged the optimized metric."""
    best, optimized = read_best(trainer), cfg.optimized_metric if steps_made(trainer) else None
    metrics = collect_metrics(trainer, best)
    if optimized is not None and optimized not in metrics:
        raise NamedFailure(f"optimized_metric={optimized}: the run has logged only {', '.join(sorted(metrics)) or 'nothing'}")
    facts = plan.facts() | collect_facts(trainer) | {"seed": cfg.seed}
    return {
        "metrics": metrics,
        "optimized_metric": optimized,
        "best_epoch": best["epoch"] + 1 if best else None,
        "ended_by": ended_by(trainer),
        "forked_from": None if (origin := cfg.get("forked_from")) is None else OmegaConf.to_container(origin),
        "wall_time": facts.get("seconds_before", 0.0) + seconds,
        **facts,
        **environment(),
    }


def logged_numbers(trainer: Any) -> dict[str, float]:
    """Return the last logged value of each name, leaving out values that are not one number, such as per-class accuracies."""
    logged = dict(trainer.callback_metrics)
    for name in [name for name in logged if name.endswith("_step") and name.removesuffix("_step") in logged]:
        del logged[name]  # the batch's value; the epoch's is there too
    return {name: float(value) for name, value in logged.items() if not isinstance(value, torch.Tensor) or value.numel() == 1}


def collect_facts(trainer: Trainer) -> dict[str, Any]:
    """Return sizes, times, devices and the facts of callbacks. A collective: the ranks' samples are summed."""
    device = trainer.strategy.root_device  # Lightning has moved the model to the CPU
    is_gpu = device.type == "cuda"
    facts: dict[str, Any] = {
        "epochs": trainer.current_epoch,
        "steps": steps_made(trainer),
        "parameters": sum(parameter.numel() for parameter in trainer.lightning_module.parameters()),
        "precision": trainer.precision,
        "device_name": torch.cuda.get_device_name(device) if is_gpu else "cpu",
        "device_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30 if is_gpu else None,
        "threads": torch.get_num_threads(),
        "not_as_one_process": [cause for callback in recording(trainer) for cause in callback.causes],
    }
    for callback in recording(trainer):
        facts |= callback.facts() or {}  # None of a monitor that is switched off
    samples, train_time = samples_trained(trainer), facts.get("train_time", 0.0)
    facts["samples_per_second"] = samples / train_time if train_time else None  # of the last start
    facts["samples_trained"] = samples + facts.pop("samples_before", 0)
    facts["train_time"] = train_time + facts.get("seconds_before", 0.0)
    return facts


def steps_made(trainer: Any) -> int:
    """Return the number of optimizer steps; the number of batches if Lightning does not wrap the model's optimizers."""
    return trainer.global_step or trainer.fit_loop.epoch_loop.batch_progress.total.processed


def samples_trained(trainer: Trainer) -> int:
    """Return the number of samples that all processes have trained on since they started; a collective."""
    samples = sum(callback.samples_trained for callback in recording(trainer))
    own = torch.tensor(samples, device=trainer.strategy.root_device)
    counted = int(trainer.strategy.reduce(own, reduce_op="sum"))
    return counted * dp_rank_and_size(trainer)[1] // trainer.world_size  # ranks may have the same samples


def ended_by(trainer: Any) -> str | None:
    """Return why training has ended, or None for an evaluation: the key of the limit, or the callback that stopped training."""
    if 0 <= trainer.max_steps <= trainer.global_step:
        return f"trainer.max_steps={trainer.max_steps}"
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch:
        return f"trainer.max_epochs={trainer.max_epochs}"
    for callback in trainer.callbacks:
        if isinstance(callback, Timer) and (callback.time_remaining() or 1.0) <= 0:
            return f"trainer.max_time, after {callback.time_elapsed():.0f} s"
        if isinstance(callback, EarlyStopping) and callback.stopping_reason_message is not None:
            return f"early stopping: {callback.stopping_reason_message}"
        if isinstance(callback, Records) and callback.ended_by is not None:
            return callback.ended_by
    return "trainer.should_stop, which the model or a callback has set" if trainer.should_stop else None


def log_result(cfg: DictConfig, trainer: Any, facts: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
    """Log the hyperparameters and final metrics of the run to each logger, once. In TensorBoard the last point of Optimized/NAME
    is the optimized metric of the best checkpoint, or the last one."""
    values = hyperparameters(cfg, facts)
    optimized = {OPTIMIZED + name: metrics[name] for name in metrics if name == cfg.optimized_metric}
    for logger in trainer.loggers:
        if isinstance(logger, ResultLogger):
            logger.log_result(values, metrics, trainer.global_step)
            continue
        points: Any = (optimized, trainer.global_step) if isinstance(logger, TensorBoardLogger) else ()
        logger.log_hyperparams(values, *points)
        logger.finalize("success")


def hyperparameters(cfg: DictConfig, facts: Mapping[str, Any]) -> dict[str, str | float]:
    """Return the values of the overridden keys, a group's being its option, and the facts that follow; in a sweep's job only the
    swept keys."""
    run_dir = Path(cfg.run_dir)
    keys, choices = [*map(override_key, read_overrides(run_dir))], read_choices(run_dir)
    job = (read_json(run_dir / "status.json") or {}).get(JOB, {})
    if swept := {*map(override_key, job.get("swept", ()))}:
        keys, facts = [key for key in keys if key in swept], {}
    values = {key: choices[key] if key in choices else OmegaConf.select(cfg, key) for key in keys}
    values |= {name: facts[name] for name in _SHOWN if name in facts}
    return {key: value if isinstance(value, str | int | float) else str(value) for key, value in values.items()}
