"""What `trainer.exact=V` means for the config of a run."""

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lockstep.runs.events import RunEvents


class VirtualWorkers(RunEvents):
    """Puts the strategy of virtual workers in the place of DDP, and pins what another number of processes would change.

    threads: of each process; on a CPU another number of threads gives other bits.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def derive(self, config: DictConfig) -> None:
        """Raises ConfigError for what does not go together with it."""
        if not OmegaConf.is_dict(OmegaConf.select(config, "trainer")) or "exact" not in config.trainer:
            return
        workers = config.trainer.exact
        with read_write(config), open_dict(config):
            del config.trainer.exact
            if workers is not None:
                from lockstep.extras.exact.settings import settings

                for key, value in settings(config, workers, self.threads).items():
                    OmegaConf.update(config, key, value, merge=False)
