"""The one place where a `_target_`, which is text, becomes a class or a function; which a config has, and where it was read."""

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lockstep.config.checkpoint_file import run_of, split_step
from lockstep.config.overrides import nodes
from lockstep.errors import ConfigError, config_error

ALLOW = "allow"  # the root key: null where a config was read from no directory
_PACKAGE = __name__.partition(".")[0]
_TOOLS = ("tests", "scripts", "benchmarks", "docs")  # folders of a project that hold programs: what they define may start others
_PROGRAMS = ("train", "setup")  # files beside the project's modules that are run, and no parts of one
BUILDABLE: set[Any] = set()
Trust = Callable[[str, str], Callable[..., Any]]  # from a key and its target; see lockstep.config.trust
T = TypeVar("T")
_lookup = functools.cache(lambda path: instantiate({"_target_": path, "_partial_": True}))


def buildable(target: T) -> T:
    """Marks a function, or a class that is no part of a model or a run, as one that a file may name: it only makes an object."""
    BUILDABLE.add(target)
    return target


def is_project_module(module: str, read: Path | None) -> bool:
    """Is it in the folder of the program or in the working directory, not installed there, and not beside what was read?"""
    package = module.partition(".")[0]
    no_parts = (*_TOOLS, _PACKAGE, *_PROGRAMS, Path(sys.argv[0]).stem)
    if not package or package in no_parts or package in sys.stdlib_module_names:
        return False
    spec = find_package(package)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location else [])]
    file = Path(*module.split(".")[1:])
    return bool(places) and all(is_project_path(Path(str(place)).resolve() / file, read) for place in places)


def find_package(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def is_project_path(place: Path, read: Path | None) -> bool:
    """Is it in the working directory or the program's folder, not installed there, and not beside what was read?"""
    if {"site-packages", "dist-packages"} & {*place.parts}:
        return False
    roots = [root for root in _projects(read) if place.is_relative_to(root)]
    return bool(roots) and (read is None or not any(_is_beside(place, read.resolve(), root) for root in roots))


def _projects(read: Path | None) -> list[Path]:
    """The working directory and the program's folder; that alone where it lies beside what was read, for it runs already."""
    here, script = Path.cwd().resolve(), Path(sys.argv[0]).resolve()
    if not script.is_file():
        return [here]
    program = script.parent.parent if script.parent.name in _TOOLS else script.parent
    is_beside = read is not None and program != here and _is_beside(program, read.resolve(), here)
    return [program] if is_beside else [here, program]


def _is_beside(place: Path, read: Path, root: Path) -> bool:
    """Is it in the same folder of the project, logs/ say, as what was read? It may have come with that."""
    if not read.is_relative_to(root):
        return False
    parts = read.relative_to(root).parts
    return len(parts) < (2 if read.is_file() else 1) or place.is_relative_to(root / parts[0])


def resolve(key: str, path: Any, trust: Trust | None = None) -> Callable[..., Any]:
    """The callable that `key`'s `_target_` names.

    Without `trust` it passes Hydra's own check of targets that run code, when it is looked up and again when it is called.
    Raises ConfigError where there is no such thing, or it may not be named.
    """
    if not isinstance(path, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", path):
        raise config_error(f"{key}._target_", path, "accepted is the full name of a class or function, lockstep.nets.CNN say")
    try:
        return _find(key, path, trust)
    except ConfigError:
        if (name := former_names().get(path)) is None:
            raise
    return _find(key, name, trust)


@functools.cache
def former_names() -> dict[str, str]:
    """Returns the present names of what was elsewhere when a checkpoint or a run was written, as extras say of their own."""
    extras = import_module(f"{_PACKAGE}.extras")
    own = (import_module(f"{extras.__name__}.{module.name}") for module in iter_modules(extras.__path__))
    return {former: name for extra in own for former, name in getattr(extra, "FORMER_NAMES", {}).items()}


def _find(key: str, path: str, trust: Trust | None) -> Callable[..., Any]:
    if trust is not None:
        return trust(key, path)
    try:
        return _lookup(path)
    except InstantiationException as error:
        raise _lookup_error(key, path, error) from error


def _lookup_error(key: str, path: str, error: InstantiationException) -> Exception:
    """One line; but a bug in the module that was imported stays what it is."""
    cause: BaseException | None = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    if cause is not None and not isinstance(cause, ImportError | AttributeError | ConfigError):
        raise cause
    reason = " ".join(str(cause or error).partition("\nfull_key")[0].split())
    return config_error(f"{key}._target_", path, f"{reason}; accepted is the full name of a class or function that may be called")


def source_directory(cfg: DictConfig) -> Path | None:
    """Returns the directory that a config was read from, None where a command line alone says what it is; the working directory,
    in which nothing is trusted then, while a sweep has not given the run its own."""
    if OmegaConf.select(cfg, ALLOW) is None:
        return None
    if not OmegaConf.select(cfg, "run_id") and (checkpoint := OmegaConf.select(cfg, "fork")) is not None:
        return run_of(split_step(checkpoint)[0])
    places = (OmegaConf.select(cfg, key, throw_on_resolution_failure=False) for key in ("resume", "hydra.sweep.dir", "run_dir"))
    return next((Path(place) for place in places if place), Path.cwd())


def targets_in(config: Any) -> Iterator[tuple[str, Any]]:
    """Each `_target_` in plain containers, and the key of the group that it is in."""
    for key, value in (("", config), *nodes(config)):
        if isinstance(value, Mapping) and "_target_" in value:
            yield key, value["_target_"]


def own_modules(cfg: DictConfig) -> list[str]:
    """The modules of this package that a config names, for the fork server to import."""
    targets = {str(target) for _, target in targets_in(OmegaConf.to_container(cfg))}
    return sorted({target.rpartition(".")[0] for target in targets if target.startswith("lockstep.")})
