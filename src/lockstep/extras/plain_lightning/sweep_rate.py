"""A sweep over the rate, whichever key the model has it under; and over folds or processes, of data that can be divided."""

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override

from lockstep.config.arguments import Arguments
from lockstep.config.construct import resolve
from lockstep.config.plan import is_plain, rate_key
from lockstep.errors import config_error
from lockstep.runs.validation import refusing

RATE = "model.optimizer.lr"  # a shipped model's key, which the configs of conf/sweep name


class SweepRate(Callback):
    """Make `hydra.sweeper.params` name the rate of a model without an optimizer's: a LightningModule of the user's own has it as
    an argument. Hydra makes the sweeper after that. Refuse a sweep over keys that the data does not have."""

    @refusing()
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _rename_rate(config)
        _check_data(config)


def _rename_rate(config: DictConfig) -> None:
    """Rename it in the sweep. Raises ConfigError for a model whose config has no rate."""
    params = OmegaConf.to_container(OmegaConf.select(config, "hydra.sweeper.params") or OmegaConf.create())
    model = config.get("model") or {}
    if not isinstance(params, dict) or RATE not in params or "lr" in (model.get("optimizer") or {}):
        return
    if (key := rate_key(model)) is None:
        name = OmegaConf.select(config, "hydra.runtime.choices.model")
        accepted = f"conf/model/{name}.yaml has neither lr nor learning_rate; add lr, if the class takes it, or sweep its own key"
        raise config_error(f"hydra.sweeper.params.{RATE}", params[RATE], accepted)
    with flag_override(config.hydra.sweeper, ["readonly", "struct"], False):
        config.hydra.sweeper.params = {f"model.{key}" if name == RATE else name: value for name, value in params.items()}


def _check_data(config: DictConfig) -> None:
    """Raise ConfigError for the user's data if it lacks a key that a sweep of conf/sweep sets: it would refuse it in each job."""
    sweep, data = OmegaConf.select(config, "hydra.runtime.choices.sweep"), config.get("datamodule") or {}
    needed, name = {"folds": "fold", "weak_scaling": "batch_size"}.get(sweep), data.get("_target_")
    if needed is None or not is_plain(config, "datamodule") or (needed == "batch_size" and needed in data):
        return
    if needed == "batch_size" or name is None or not Arguments(resolve("datamodule", name)).takes(needed):
        words = f"datamodule has no {needed}; use data that takes it, such as a lockstep.datamodules.DataModule"
        raise config_error("sweep", sweep, words)
