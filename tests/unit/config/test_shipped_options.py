"""Every option that is shipped passes the checks, and what it names is there."""

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
from lockstep.runs.validation import check

CONF = Path(__file__).parents[3] / "conf"
CHOSEN_ALONE = ("experiment", "debug")  # a whole config each
# The files beside them build on these: a key that is missing, by option.
MISSING = {"net: ???": "model.net", "_target_: ???": "datamodule._target_"}
ABSTRACT = {
    f"{group}={file.stem}": MISSING[line.partition(" #")[0]]
    for group in ("model", "datamodule")
    for file in sorted((CONF / group).glob("*.yaml"))
    for line in file.read_text().splitlines()
    if line.partition(" #")[0] in MISSING
}
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
    result = [f"{group}={file.stem}" for file in sorted((CONF / group).glob("*.yaml"))]
    return [option for option in result if option not in ABSTRACT]


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
