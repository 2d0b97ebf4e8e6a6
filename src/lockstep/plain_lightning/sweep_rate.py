"""Sweeps over the learning rate, under whichever key the model has it."""

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override

from lockstep.config.plan import rate_key
from lockstep.errors import config_error
from lockstep.runs.validation import refusing

RATE = "model.optimizer.lr"  # a shipped model's key, which the configs of conf/sweep name


class SweepRate(Callback):
    """Rename the learning rate in `hydra.sweeper.params` for a user's LightningModule, which has it as an argument of its own.
    Hydra creates the sweeper after that."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        params: Any = OmegaConf.to_container(OmegaConf.select(config, "hydra.sweeper.params") or OmegaConf.create())
        model = config.get("model") or {}
        key = rate_key(model)
        if RATE in params and key is None and "optimizer" not in model:
            with refusing():
                needs = "its YAML has no lr or learning_rate for this sweep to vary; add one, an argument of the class"
                raise config_error("model._target_", model.get("_target_"), f"{needs}, or use -m with keys that it has")
        if RATE in params and key not in (None, "optimizer.lr"):
            with flag_override(config.hydra.sweeper, ["readonly", "struct"], False):
                config.hydra.sweeper.params = {f"model.{key}" if name == RATE else name: params[name] for name in params}
