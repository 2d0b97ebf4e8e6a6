"""What each key of the config accepts."""

import datetime
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from lockstep.config.urls import is_url


@dataclass(frozen=True)
class Rule:
    """A test of one value, and the words for what passes it."""

    words: str
    test: Callable[[Any], bool]

    def or_null(self) -> "Rule":
        return Rule(f"{self.words}, or null", lambda value: value is None or self.test(value))

    def or_auto(self) -> "Rule":
        return Rule(f"{self.words}, or auto", lambda value: value == "auto" or self.test(value))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or isinstance(value, float)


def integer(least: int, most: float = float("inf")) -> Rule:
    bounds = f"of at least {least}" if most == float("inf") else f"between {least} and {most}"
    return Rule(f"accepted is an integer {bounds}", lambda v: _is_int(v) and least <= v <= most)


def number(least: float, most: float = float("inf")) -> Rule:
    bounds = f"of at least {least:g}" if most == float("inf") else f"between {least:g} and {most:g}"
    return Rule(f"accepted is a number {bounds}", lambda v: _is_number(v) and math.isfinite(v) and least <= v <= most)


def above(least: float) -> Rule:
    return Rule(f"accepted is a number above {least:g}", lambda v: _is_number(v) and math.isfinite(v) and v > least)


def some(what: str, one: Rule, count: int | None = None) -> Rule:
    """A list of what passes a rule."""
    return Rule(
        f"accepted is a list of {what}",
        lambda v: OmegaConf.is_list(v) and len(v) == (len(v) if count is None else count) and all(map(one.test, v)),
    )


def one_of(*options: object) -> Rule:
    words = "accepted is " + ", ".join(str(option).lower() if isinstance(option, bool) else str(option) for option in options)
    return Rule(words, lambda v: any(v == option and isinstance(v, type(option)) for option in options))


def _is_devices(value: Any) -> bool:
    if OmegaConf.is_list(value):
        return len(value) > 0 and all(_is_int(i) and i >= 0 for i in value) and len(set(value)) == len(value)
    return value in ("auto", -1) or (_is_int(value) and value >= 1)


def _is_duration(value: object) -> bool:
    try:
        days, hours, minutes, seconds = (int(part) for part in str(value).split(":"))
        return datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) > datetime.timedelta()
    except (ValueError, OverflowError):  # beyond any calendar
        return False


def _is_pattern(value: object) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except re.error:
        return False


def _is_schedule(value: object) -> bool:
    return OmegaConf.is_dict(value) and all(_is_int(epoch) and epoch >= 0 and _is_pattern(value[epoch]) for epoch in value)  # pyright: ignore


YES_NO = one_of(True, False)
TEXT = Rule("accepted is text", lambda v: isinstance(v, str) and v != "")
PATTERN = Rule("accepted is a regular expression", _is_pattern)
UNENDING = Rule("accepted is an integer of at least 1, or -1 for no limit", lambda v: _is_int(v) and (v >= 1 or v == -1))
AMOUNT = Rule(
    "accepted is a number of batches of at least 1, or a fraction above 0.0 and up to 1.0",
    lambda v: (_is_int(v) and v >= 1) or (isinstance(v, float) and 0 < v <= 1),
)
LIMIT = Rule(
    "accepted is a number of batches, or a fraction between 0.0 and 1.0",
    lambda v: (_is_int(v) and v >= 0) or (isinstance(v, float) and 0 <= v <= 1),
)
SEED = integer(0, 2**32 - 1)  # numpy's bounds
PRECISIONS = ("32-true", "32", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true", "64", 16, 32, 64)

# The keys of the kinds of values that many have.
_OF_A_KIND: dict[Rule, str] = {
    YES_NO: """
        test overwrite fresh_processes
        trainer.enable_model_summary trainer.enable_progress_bar trainer.sync_batchnorm
        trainer.strategy.gradient_as_bucket_view trainer.strategy.find_unused_parameters trainer.strategy.static_graph
        datamodule.drop_last datamodule.shuffle datamodule.pin_memory datamodule.persistent_workers datamodule.on_device
        datamodule.standardize datamodule.teacher datamodule.verify datamodule.cache datamodule.streaming
        model.compile model.channels_last model.optimizer.fused
        trainer.checkpoint_io.async
        callbacks.tf32.matrices callbacks.tf32.convolutions
    """,
    integer(1): """
        max_processes_per_core base_batch_size
        trainer.accumulate_grad_batches trainer.log_every_n_steps trainer.strategy.tensor_parallel_size
        trainer.strategy.communication.rank trainer.strategy.communication.period
        datamodule.size datamodule.length datamodule.val_length datamodule.test_length datamodule.in_features
        datamodule.out_features datamodule.context
        model.adapt.rank model.net.width model.net.kernel_size model.net.heads model.optimizer.ns_steps
        model.lr_scheduler.frequency model.lr_scheduler.step_size
        guards.preemption.every_n_steps guards.nonfinite.every_n_steps
        callbacks.ema.update_every_n_steps callbacks.pictures.samples callbacks.step_time.every_n_steps
        callbacks.profiler.first_step callbacks.profiler.steps callbacks.noise_scale.every_n_steps
        callbacks.noise_scale.every_n_steps_alone
    """,
    integer(1).or_null(): """
        trainer.check_val_every_n_epoch datamodule.global_batch_size model.net.mlp_width model.net.kv_heads
        model.net.patch guards.checkpoint.every_n_epochs guards.checkpoint.every_n_steps
    """,
    integer(0): """
        max_restarts trainer.strategy.communication.start datamodule.fold datamodule.augment.crop datamodule.overlap
        model.net.registers model.lr_scheduler.warmup_steps model.lr_scheduler.warmup_epochs model.lr_scheduler.patience
        callbacks.early_stopping.patience callbacks.progress.refresh_rate
    """,
    SEED: "seed trainer.strategy.communication.seed datamodule.seed guards.randomness.seed",
    above(0): """
        datamodule.curriculum.epochs datamodule.curriculum.pacing.power model.adapt.alpha model.net.scaling_factor
        model.net.rope_base model.net.norm_eps model.lr_scheduler.div_factor model.lr_scheduler.final_div_factor
    """,
    TEXT: "optimized_metric datamodule.dataset datamodule.data_dir datamodule.target",
    TEXT.or_null(): """
        resume ckpt_path init_from datamodule.cache_dir datamodule.tokenizer datamodule.separator
        model.lr_scheduler.monitor
    """,
    PATTERN: """
        trainer.strategy.blocks trainer.strategy.plan.colwise trainer.strategy.plan.rowwise model.adapt.match
        callbacks.activation_checkpointing.match callbacks.freeze.match
    """,
    one_of("max", "min"): """
        optimized_mode callbacks.best_checkpoint.mode callbacks.early_stopping.mode
    """,
}

# What a value must be beyond the type that its target's annotation says: checked before that target is imported. Those of
# groups are checked where the key is present, for a datamodule or model of one's own may lack any of them.
RULES: dict[str, Rule] = {
    **{key: accepted for accepted, keys in _OF_A_KIND.items() for key in keys.split()},
    "name": Rule("accepted is text, of which no part is ..", lambda v: TEXT.test(v) and ".." not in v.split("/")),
    "allow": some("names of modules and classes", TEXT).or_null(),
    "mirror": Rule("accepted is a URL that fsspec knows, s3://BUCKET/PREFIX say", is_url).or_null(),
    "mirror_wait": number(0, 10**7),
    "memory_per_process": above(0).or_null(),
    "init_without": PATTERN.or_null(),
    "lr_scaling": one_of("none", "linear", "sqrt"),
    "trainer.accelerator": one_of("auto", "cpu", "gpu", "cuda", "mps"),
    "trainer.devices": Rule("accepted is a number of at least 1, auto, or a list of GPU ids", _is_devices),
    "trainer.num_nodes": integer(1).or_auto(),
    "trainer.precision": one_of(*PRECISIONS),
    "trainer.max_epochs": UNENDING.or_null(),
    "trainer.max_steps": UNENDING,
    "trainer.max_time": Rule("accepted is a time as DD:HH:MM:SS", _is_duration).or_null(),
    "trainer.gradient_clip_val": number(0).or_null(),
    "trainer.gradient_clip_algorithm": one_of("norm", "value"),
    "trainer.limit_train_batches": AMOUNT,
    "trainer.limit_val_batches": LIMIT,
    "trainer.limit_test_batches": LIMIT,
    "trainer.val_check_interval": AMOUNT,
    "trainer.num_sanity_val_steps": integer(-1).or_null(),
    "trainer.deterministic": one_of(True, False, "warn"),
    "trainer.benchmark": YES_NO.or_null(),
    "trainer.strategy.process_group_backend": one_of("nccl", "gloo").or_null(),
    "trainer.strategy.timeout": number(1, 10**7),
    "trainer.strategy.bucket_cap_mb": number(0.001),
    "trainer.strategy.communication.dtype": one_of("float16", "bfloat16"),
    "datamodule.batch_size": integer(1).or_auto(),
    "datamodule.num_workers": integer(0).or_null(),
    "datamodule.val_fraction": number(0, 0.9),
    "datamodule.folds": integer(2).or_null(),
    "datamodule.test_fraction": number(0, 0.9),
    "datamodule.augment": Rule(
        "accepted is {crop: PIXELS, flip: true|false|alternating, padding: zeros|reflect}, or null",
        lambda v: v is None or OmegaConf.is_dict(v),
    ),
    "datamodule.augment.flip": one_of(True, False, "alternating"),
    "datamodule.augment.padding": one_of("zeros", "reflect"),
    "datamodule.curriculum.pacing.start": number(0.001, 1),
    "datamodule.num_classes": integer(2),
    "datamodule.shape": some("three integers of at least 1", integer(1), count=3),
    "datamodule.noise": number(0),
    "datamodule.inputs": Rule(
        "accepted is a list of names of columns, or one name",
        lambda v: TEXT.test(v) or (OmegaConf.is_list(v) and len(v) > 0 and all(map(TEXT.test, v))),
    ),
    "datamodule.paths": some("files and folders", TEXT).or_null(),
    "datamodule.suffixes": some("endings such as .txt", TEXT),
    "model.metrics": some("names", TEXT),
    "model.torchmetrics": Rule(
        "accepted is {NAME: {_target_: torchmetrics....}}, or null",
        lambda v: v is None or (OmegaConf.is_dict(v) and all(OmegaConf.is_dict(m) and "_target_" in m for m in v.values())),
    ),
    "model.param_groups": Rule(
        "accepted is {NAME: {match: PART OF A PARAMETER'S NAME, OPTION: VALUE}}, or null",
        lambda v: v is None or (OmegaConf.is_dict(v) and all(OmegaConf.is_dict(g) and "match" in g for g in v.values())),
    ),
    "model.adapt.train": PATTERN.or_null(),
    "model.compile_mode": one_of("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "model.label_smoothing": number(0, 1),
    "model.tta": one_of("none", "mirror", "mirror_translate"),
    "model.net.depth": integer(1, 1000),  # layers are made one by one, however long that takes
    "model.net.dropout": number(0, 1),
    "model.net.hidden": some("integers of at least 1", integer(1)),
    "model.net.batchnorm_momentum": number(0, 1),
    "model.net.separator": integer(-1).or_null(),
    "model.optimizer.lr": number(0),
    "model.optimizer.weight_decay": number(0),
    "model.optimizer.momentum": number(0, 1),
    "model.lr_scheduler.interval": one_of("step", "epoch"),
    "model.lr_scheduler.gamma": number(0),
    "model.lr_scheduler.min_factor": number(0),
    "model.lr_scheduler.pct_start": number(0, 1),
    "trainer.checkpoint_io.on_save_error": one_of("fail", "warn"),
    "guards.checkpoint.every_n_minutes": number(0.001).or_null(),
    "guards.preemption.deadline": number(1, 10**7).or_null(),
    "guards.nonfinite.action": one_of("stop", "skip"),
    "guards.watchdog.seconds": number(1, 10**7),
    "guards.watchdog.seconds_to_first_batch": number(1, 10**7),
    "callbacks.best_checkpoint.save_top_k": integer(-1),
    "callbacks.ema.decay": number(0, 1),
    "callbacks.ema.update_starting_at_step": integer(0).or_null(),
    "callbacks.early_stopping.min_delta": number(0),
    "callbacks.throughput.peak_flops": above(0).or_null(),
    "callbacks.freeze.unfreeze": Rule("accepted is {EPOCH: REGULAR EXPRESSION}", _is_schedule).or_null(),
    "callbacks.noise_scale.decay": number(0, 0.9999),
}
