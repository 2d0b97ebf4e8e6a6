"""A sweep over the learning rate, whichever key the model has it under.

Hydra makes this callback for single runs too: what it does is imported where it does it.
"""

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override

RATE = "model.optimizer.lr"  # of a Task, which the configs of conf/sweep name


class SweepRate(Callback):
    """Has `hydra.sweeper.params` name the rate of a model that has no optimizer's: a LightningModule of one's own has it as an
    argument. Hydra makes the sweeper after that."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        from lockstep.runs.validation import refusing

        with refusing():
            rename_rate(config)


def rename_rate(config: DictConfig) -> None:
    """Raises ConfigError for a model whose config has no rate."""
    from lockstep.config.plan import rate_key
    from lockstep.errors import config_error

    params = OmegaConf.to_container(OmegaConf.select(config, "hydra.sweeper.params") or OmegaConf.create())
    model = config.get("model") or {}
    if not isinstance(params, dict) or RATE not in params or "lr" in (model.get("optimizer") or {}):
        return
    if (key := rate_key(model)) is None:
        accepted = (
            f"model has neither lr nor learning_rate; accepted is its own key in the place of the sweep: KEY={params[RATE]}"
        )
        raise config_error(f"hydra.sweeper.params.{RATE}", params[RATE], accepted)
    with flag_override(config.hydra.sweeper, ["readonly", "struct"], False):
        config.hydra.sweeper.params = {f"model.{key}" if name == RATE else name: value for name, value in params.items()}
