"""The configs of a sweep's jobs, as Hydra composes them, which takes a quarter of a second each."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf


class JobConfigs:
    """Composes once for all jobs that choose the same options of groups: they differ by the values that are set then."""

    def __init__(self, config: DictConfig, loader: Any) -> None:
        self.config, self.loader = config, loader
        self._composed: dict[tuple[str, ...], DictConfig] = {}
        parser = OverridesParser.create(loader)
        self._parse = functools.cache(lambda item: parser.parse_overrides([item])[0])

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Returns what `loader.load_sweep_config` does, key for key, and raises what it raises."""
        given = [self._parse(item) for item in overrides]
        values = [one for one in given if self._sets_value(one)]
        chosen = tuple(item for item, one in zip(overrides, given, strict=True) if one not in values)
        if chosen not in self._composed:
            self._composed[chosen] = self.loader.load_sweep_config(self.config, [*chosen])
        config = copy.deepcopy(self._composed[chosen])
        OmegaConf.copy_cache(from_config=self.config, to_config=config)
        self.loader._apply_overrides_to_config(values, config)
        own, hydra = [one for one in given if not one.is_hydra_override()], config.hydra
        hydra.overrides.task = [one.input_line for one in own]
        hydra.job.override_dirname = get_overrides_dirname(overrides=own, **hydra.job.config.override_dirname)
        return config

    def _sets_value(self, override: Override) -> bool:
        """Return whether an override sets a value of the run's own config (hydra/_internal/defaults_list.py::Overrides)."""
        if override.is_sweep_override() or override.is_hydra_override():
            return False
        return isinstance(override.value(), dict) or not self.loader.repository.group_exists(override.key_or_group)
