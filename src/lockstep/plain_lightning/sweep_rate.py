"""A sweep over the rate, whichever key the model has it under."""

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override

from lockstep.config.plan import rate_key

RATE = "model.optimizer.lr"  # a shipped model's key, which the configs of conf/sweep name


class SweepRate(Callback):
    """Make `hydra.sweeper.params` name the rate of a model without an optimizer's: a LightningModule of the user's own has it as
    an argument. Hydra makes the sweeper after that."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        params: Any = OmegaConf.to_container(OmegaConf.select(config, "hydra.sweeper.params") or OmegaConf.create())
        key = rate_key(config.get("model") or {})
        if RATE in params and key not in (None, "optimizer.lr"):
            with flag_override(config.hydra.sweeper, ["readonly", "struct"], False):
                config.hydra.sweeper.params = {f"model.{key}" if name == RATE else name: params[name] for name in params}
