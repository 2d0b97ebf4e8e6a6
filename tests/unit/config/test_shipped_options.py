"""Every option that is shipped passes the checks, and what it names is there; whether more of a metric is better."""

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_object
from make_reference import GROUPS
from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.metrics import mode_by_name
from lockstep.runs.composition import compose
from lockstep.runs.validation import check, validated

CONF = Path(__file__).parents[3] / "conf"
CHOSEN_ALONE = ("experiment", "debug")  # a whole config each
# The options beside these build on them; each with the key that is missing.
ABSTRACT = {f"model={name}": "model.net" for name in ("classifier", "language_model", "regressor", "task")}
ABSTRACT |= {"datamodule=base": "datamodule._target_"}
# What an option needs beside itself to make sense.
COMPANIONS = {
    **{f"model={name}": ["optimized_metric=val/loss", "optimized_mode=min"] for name in ("gpt", "gpt_nano")},
    "callbacks=freeze": ["callbacks.freeze.match=net"],
    "experiment=finetune_digits": ["init_from=null", "init_without=null"],
    **{f"trainer{key}=tensor_parallel": ["trainer/plan=gpt"] for key in ("", "/strategy")},
    "model=linear": ["optimized_metric=val/loss", "optimized_mode=min"],
    "datamodule=hf_dataset": ["datamodule.data_dir=.", "datamodule.inputs=x"],
    "datamodule=image_folder": ["datamodule.data_dir=."],
    "datamodule=cached_image_folder": ["datamodule.data_dir=."],
}


def options(group: str) -> list[str]:
    every = [f"{group}={file.stem}" for file in sorted((CONF / group).glob("*.yaml"))]
    return [option for option in every if option not in ABSTRACT]


def every_option() -> list[list[str]]:
    """The first options of all groups, the second ones, ...: composing one config an option would take a minute."""
    together = zip_longest(*map(options, GROUPS))
    alone = [[option] for group in CHOSEN_ALONE for option in options(group)]
    return [[option for option in row if option is not None] for row in together] + alone


@pytest.mark.parametrize("chosen", every_option(), ids=" ".join)
def test_every_option_passes_and_names_targets_that_exist(
    chosen: list[str], compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.config.plan.visible_gpus", lambda: 4)
    cfg = compose(*chosen, *(override for option in chosen for override in COMPANIONS.get(option, [])))
    check(cfg)
    assert Plan.from_config(cfg).world_size >= 1
    for target in list_targets(OmegaConf.to_container(cfg, resolve=True)):
        assert callable(get_object(target))


@pytest.mark.parametrize("option", options("guards"))
def test_whatever_guards_are_chosen_the_default_ones_stay(option: str, compose: Callable[..., DictConfig]) -> None:
    assert {*compose().guards} <= {*compose(option).guards}


def list_targets(node: Any) -> list[str]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    own = [node["_target_"]] if isinstance(node, dict) and "_target_" in node else []
    return own + [target for child in children for target in list_targets(child)]


@pytest.mark.parametrize("option", ABSTRACT)
def test_an_abstract_option_alone_is_refused(option: str, compose: Callable[..., DictConfig]) -> None:
    with pytest.raises(ConfigError, match=rf"^{ABSTRACT[option]}=\?\?\?: a value is required$"):
        check(compose(option))


def test_a_global_batch_counts_before_the_batch_size_of_an_experiment(compose: Callable[..., DictConfig]) -> None:
    given = ("trainer=cpu", "trainer.devices=2", "datamodule.global_batch_size=8")
    plan = Plan.from_config(compose("experiment=mnist_ddp", *given))
    assert (plan.batch_size, plan.global_batch_size) == (4, 8)


EARLY = ("callbacks=early_stopping", "model/lr_scheduler=plateau")


@pytest.mark.parametrize(
    ("mode", "metrics"),
    [
        ("min", ["val/loss", "val_loss/dataloader_idx_0", "test_rmse", "perplexity", "val_wer", "fid"]),
        ("max", ["val/acc", "val/f1", "val_AUROC", "top5"]),
        ("unknown", ["lossless_ratio", "power", "answer", "neg_loss"]),
    ],
)
def test_a_name_says_whether_less_is_better(mode: str, metrics: list[str]) -> None:
    assert {metric: mode_by_name(metric) for metric in metrics} == dict.fromkeys(metrics, mode)


@pytest.mark.parametrize(
    ("overrides", "modes"),
    [
        ((), ("max", "max", "max", "max")),
        (("optimized_metric=val/loss",), ("min", "min", "min", "min")),
        (("optimized_metric=val/loss", "optimized_mode=max"), ("max", "max", "max", "max")),
        (("callbacks.early_stopping.monitor=val/loss",), ("max", "max", "min", "max")),
    ],
)
def test_what_is_looked_at_by_a_metric_takes_its_mode(overrides: tuple[str, ...], modes: tuple[str, ...]) -> None:
    cfg = compose(*EARLY, *overrides)
    keys = ("optimized_mode", "callbacks.best_checkpoint.mode", "callbacks.early_stopping.mode", "model.lr_scheduler.mode")
    assert tuple(OmegaConf.select(cfg, key) for key in keys) == modes


def test_a_name_that_does_not_say_it_needs_a_mode() -> None:
    for key in ("optimized_metric=val/epe", "callbacks.early_stopping.monitor=val/epe"):
        with pytest.raises(ConfigError, match=f"^{key}: .* set [a-z_.]*mode=max or [a-z_.]*mode=min$"):
            check(compose(*EARLY, key))
    validated(compose(*EARLY, "~model.metrics", "optimized_metric=val/epe", "optimized_mode=min", "trainer=cpu"))
