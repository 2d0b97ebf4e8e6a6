"""Hydra's seam for what comes before a sweep's first batch and after its last."""

import atexit
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override

from lockstep.config.overrides import override_key
from lockstep.config.plan import rate_key
from lockstep.errors import config_error
from lockstep.runs.directory import absolute, take_sweep_directory
from lockstep.runs.validation import refusing

_RATE = "model.optimizer.lr"  # a shipped model's key, which the configs of conf/sweep name


class EndSweep(Callback):
    """The table and the exit code when the last job is over; `Sweep.launch` is called once per batch."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Takes the directory before Hydra's sweeper writes into it."""
        HydraConfig.instance().set_config(config)
        with refusing():
            written: Any = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
            given = {override_key(item): item.partition("=")[2] for item in written}
            if (value := given.get("hydra.run.dir")) is not None:
                raise config_error("hydra.run.dir", value, f"is for one run; use hydra.sweep.dir={value}")
            for group in ("launcher", "sweeper"):
                if not OmegaConf.is_dict(node := config.hydra[group]):  # hydra.launcher=slurm takes the place of the whole group
                    raise config_error(f"hydra.{group}", node, f"a group of values; use hydra/{group}={node}")
            own = take_sweep_directory(absolute(config.hydra.sweep.dir))
            atexit.register(own.remove_without_jobs)  # however it ends: refused, a dry run, a bug
        rename_rate(config)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from lockstep.sweeps.sweep import Sweep  # Hydra makes this callback for single runs too

        if Sweep.current is not None:
            with refusing():
                Sweep.current.end()


def rename_rate(config: DictConfig) -> None:
    """Rename the learning rate in `hydra.sweeper.params` for a LightningModule that has it as an own argument. Hydra then creates
    the sweeper."""
    params: Any = OmegaConf.to_container(OmegaConf.select(config, "hydra.sweeper.params") or OmegaConf.create())
    key = rate_key(config.get("model") or {})
    if _RATE in params and key not in (None, "optimizer.lr"):
        with flag_override(config.hydra.sweeper, ["readonly", "struct"], False):
            config.hydra.sweeper.params = {f"model.{key}" if name == _RATE else name: params[name] for name in params}
