"""What `trainer.exact=V` means for the config of a run."""

from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lockstep.config.targets import buildable
from lockstep.errors import config_error
from lockstep.runs.events import RunEvents

_DDP = "lockstep.trainer.strategies.DDP"
_PACKAGE = __name__.rpartition(".")[0]


@buildable
class VirtualWorkers(RunEvents):
    """Puts the strategy of virtual workers in the place of DDP, and pins what another number of processes would change.

    threads: of each process; on a CPU another number of threads gives other bits.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def derive(self, config: DictConfig) -> None:
        """Raises ConfigError for what can't be had with it."""
        if "exact" not in config.trainer:
            return
        workers = config.trainer.exact
        with read_write(config), open_dict(config):
            del config.trainer.exact
            if workers is not None:
                _check(config, workers)
                for key, value in self._settings(config, workers).items():
                    OmegaConf.update(config, key, value, merge=False)

    def _settings(self, config: DictConfig, workers: int) -> dict[str, Any]:
        kept = {name: config.trainer.strategy[name] for name in ("timeout", "process_group_backend")}
        strategy = {"_target_": f"{_PACKAGE}.strategy.Exact", "workers": workers, "threads": self.threads}
        return {
            "trainer.strategy": strategy | kept,
            "trainer.sync_batchnorm": False,  # each worker has its own statistics
            "trainer.deterministic": config.trainer.get("deterministic") or True,
            "datamodule.global_batch_size": config.datamodule.global_batch_size or config.datamodule.batch_size * workers,
            "guards.exact": {"_target_": f"{_PACKAGE}.means.WorkerMeans", "workers": workers},
            "guards.equivalence": None,  # it looks for what keeps DDP from giving the result of one process
        }


def _check(config: DictConfig, workers: Any) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1 or workers & (workers - 1):
        raise config_error("trainer.exact", workers, "accepted is a power of two, the number of virtual workers, or null")
    trainer = config.trainer
    if trainer.strategy.get("_target_") != _DDP:
        raise config_error("trainer.strategy._target_", trainer.strategy.get("_target_"), f"with trainer.exact accepted is {_DDP}")
    if trainer.strategy.get("communication") is not None:
        raise config_error("trainer/communication", trainer.strategy.communication["_target_"], "with trainer.exact accepted is null")
    if trainer.accumulate_grad_batches != 1:
        accepted = "its virtual workers are what is accumulated; accepted is 1"
        raise config_error("trainer.accumulate_grad_batches", trainer.accumulate_grad_batches, f"with trainer.exact {accepted}")
    _check_data(config, workers)
    if OmegaConf.select(config, "guards.randomness") is None:
        raise config_error("guards.randomness", "null", "trainer.exact counts random numbers by worker; accepted is the guard")


def _check_data(config: DictConfig, workers: int) -> None:
    batch_size, total = (OmegaConf.select(config, f"datamodule.{name}") for name in ("batch_size", "global_batch_size"))
    if not isinstance(batch_size, int) and not isinstance(total, int):
        accepted = "accepted is a number of samples of each virtual worker, or datamodule.global_batch_size of all"
        raise config_error("datamodule.batch_size", batch_size, f"with trainer.exact {accepted}")
    if isinstance(total, int) and total % workers:
        raise config_error("datamodule.global_batch_size", total, f"accepted is a multiple of trainer.exact={workers}")
