"""The checks that stand beside a class, in a module `checks.py` of its package: which are run before torch is imported.

Such a module may have two dictionaries, from the name of a class or function to what is asked of a node with that `_target_`:

- RULES: {"Class": {"argument": Rule}}, what an argument accepts where the config has it; `group.name` is in a group of the node;
- CHECKS: {"Class": check}, where check(cfg, key, plan) raises ConfigError for what does not go together.

For `a.b.c.Class` it is a.b.checks, or else a.checks. Only those of this package are run, without their
packages: they must not import torch, nor the package that they are in. In the rooms of the groups model, datamodule and trainer
"*" stands for whatever class that group names, and "plain" for that of a model or datamodule whose option does not extend the one
of this package that has the keys of all: its arguments mean what its class says, though they have names of this package's.
"""

import functools
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.config.rules import Rule
from lockstep.config.targets import targets_in

Check = Callable[[DictConfig, str, Plan], None]
_PACKAGE = __name__.partition(".")[0]
_ROOMS = {"trainer": "trainer", "datamodule": "datamodules", "model": "models"}  # of the groups
_IN_ALL = {"trainer": "_target_", "datamodule": "standardize", "model": "param_groups"}  # a key of what options extend


def rules_in(cfg: DictConfig) -> Iterator[tuple[str, Rule]]:
    """The keys that classes have rules for."""
    for key, name, checks in _modules_in(cfg):
        for argument, rule in getattr(checks, "RULES", {}).get(name, {}).items():
            yield f"{key}.{argument}", rule


def is_plain(cfg: DictConfig, group: str) -> bool:
    """Returns whether the group's keys are those of a class that knows nothing of this package."""
    return _IN_ALL[group] not in (OmegaConf.select(cfg, group) or ())


def check_classes(cfg: DictConfig, plan: Plan) -> None:
    """Raises ConfigError for what does not go together, by the checks of the classes that the config names."""
    for key, name, checks in _modules_in(cfg):
        check: Check | None = getattr(checks, "CHECKS", {}).get(name)
        if check is not None:
            check(cfg, key, plan)


def _modules_in(cfg: DictConfig) -> Iterator[tuple[str, str, ModuleType]]:
    """Yields for each node with a `_target_` its key, a name to look up and the module to look it up in."""
    there = [(key, room) for key, room in _ROOMS.items() if OmegaConf.is_dict(OmegaConf.select(cfg, key))]
    rooms = [(key, f"{_PACKAGE}.{room}.{'plain' if is_plain(cfg, key) else '*'}") for key, room in there]
    for key, target in (*rooms, *targets_in(OmegaConf.to_container(cfg))):
        module, _, name = str(target).rpartition(".")
        if module.partition(".")[0] == _PACKAGE:
            parts = module.split(".")
            nearest_first = (".".join([*parts[:length], "checks"]) for length in range(len(parts), 0, -1))
            if (checks := next(filter(None, map(load, nearest_first)), None)) is not None:
                yield key, name, checks


@functools.cache
def load(name: str) -> ModuleType | None:
    """Returns the module of that name, executed without the packages that it is in; None where there is none."""
    package, *rest = name.split(".")
    spec, path = find_spec(package), package
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        path = f"{path}.{part}"
        spec = PathFinder.find_spec(path, spec.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
