"""What `trainer.compile_step=true` means for a run."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lockstep.config.targets import buildable
from lockstep.errors import config_error
from lockstep.runs.events import RunEvents

_RECORD = f"{__name__.rpartition('.')[0]}.record.GraphRecord"


@buildable
class CompileStep(RunEvents):
    """Gives the trainer an epoch loop that compiles steps.

    enabled: by `trainer.compile_step`.
    backend: of torch.compile.
    cache: a folder for what is compiled, by torch's version; null leaves it where torch keeps it.
    cache_gib: the most that is kept there.
    """

    def __init__(self, enabled: bool, backend: str, cache: str | None, cache_gib: float) -> None:
        self.enabled, self.backend = enabled, backend
        self.cache, self.cache_gib = cache, cache_gib

    def derive(self, config: DictConfig) -> None:
        if not OmegaConf.is_dict(OmegaConf.select(config, "trainer")) or "compile_step" not in config.trainer:
            return
        wanted = config.trainer.compile_step
        if wanted not in (True, False, None):
            raise config_error("trainer.compile_step", wanted, "accepted is true, false or null")
        with read_write(config), open_dict(config):
            del config.trainer.compile_step
            for node in config.events.values():
                if node is not None and node.get("_target_") == f"{type(self).__module__}.{type(self).__qualname__}":
                    node.enabled = bool(wanted)
            if wanted:
                OmegaConf.update(config, "guards.compiled_step", {"_target_": _RECORD})

    def imported(self, cfg: DictConfig) -> None:
        if self.enabled:
            from lockstep.extras.compiled_step.rehearsal import rehearse

            self._use_cache(cfg)
            rehearse(self.backend)

    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        if not self.enabled:
            return
        from lockstep.extras.compiled_step.epoch_loop import install_compiled_steps

        self._use_cache(cfg)
        install_compiled_steps(trainer, self.backend)

    def _use_cache(self, cfg: DictConfig) -> None:
        from lockstep.extras.compiled_step.cache import trusted, use_cache

        if self.cache is not None:
            use_cache(Path(trusted(cfg, self.cache)), self.cache_gib)
