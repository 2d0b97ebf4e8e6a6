"""Models and weights from checkpoints."""

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, get_type_hints

from hydra.utils import get_object
from lightning import LightningModule
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lockstep.checkpointing import read_checkpoint
from lockstep.config.construct import targets_in
from lockstep.errors import ConfigError, config_error
from lockstep.models.from_config import build_model
from lockstep.places import import_from_project, project

log = logging.getLogger(__name__)
_COMPILED = "_orig_mod."  # torch.compile(net) puts it into the names of a net's tensors
_NO_CONFIG = (
    "does not say what it is built of; use a checkpoint of a model of lockstep.models. "
    "That of another LightningModule is read by its load_from_checkpoint"
)
# Modules whose networks, optimizers, schedules and metrics a checkpoint may name, and those of them whose metrics load networks.
_FUNCTIONS_TOO = ("lockstep.models", "lockstep.nets", "lockstep.extras", "torchvision.models")
_LIBRARIES = (*_FUNCTIONS_TOO, "torch.nn", "torch.optim", "torchmetrics")
_LOAD_NETWORKS = [f"torchmetrics.{name}" for name in ("audio", "image", "multimodal", "text", "video")]


def load_model(checkpoint: str | Path, allow: Collection[str] = ()) -> Any:
    """Return a trained model from a checkpoint, on the CPU and in evaluation mode, without Hydra's command line.

    A checkpoint says what it is built of. It can name networks, optimizers, schedules and metrics of this package, torch,
    torchvision, torchmetrics and the project, and the targets in `allow`: whatever else it names is refused, not run.
    """
    path = Path(checkpoint)
    import_from_project()
    model_config = read_checkpoint("checkpoint", path, whole=()).get("hyper_parameters")
    if not isinstance(model_config, dict) or not isinstance(model_config.get("model"), dict) or "spec" not in model_config:
        raise config_error("checkpoint", path, _NO_CONFIG)
    try:
        for key, target in targets_in(model_config):
            if target not in allow:
                _check_part(key, str(target), path.resolve())
        with _unpickling_nothing():
            model = build_model(model_config)
    except ConfigError as error:
        raise config_error("checkpoint", path, str(error)) from error
    except Exception as error:  # whatever a constructor says to nonsense
        reason = f"no model can be built of what it says ({type(error).__name__}: {error})"
        raise config_error("checkpoint", path, reason) from error
    load_weights(model, "checkpoint", path)
    return model.eval()


def _check_part(key: str, target: str, checkpoint: Path) -> None:
    """Raise ConfigError unless the target is a part of a model. Import nothing from the folder of the checkpoint."""
    if _may_be_imported(target, checkpoint):
        part = get_object(target)
        function = isinstance(part, FunctionType) and _is_below(part.__module__, _FUNCTIONS_TOO)
        kinds = [part] if isinstance(part, type) else [*get_type_hints(part).values()] if function else []
        is_part = any(isinstance(kind, type) and issubclass(kind, nn.Module | Optimizer | LRScheduler) for kind in kinds)
        if is_part and _may_be_imported(f"{part.__module__}.{part.__qualname__}", checkpoint):
            return
    accepted = "use networks, optimizers, schedules and metrics of lockstep, torch, torchvision, torchmetrics and of the"
    how = f"project, or load_model(PATH, allow=[{target!r}])"
    raise config_error(f"{key}._target_", target, f"a checkpoint may not name that; {accepted} {how}")


def _may_be_imported(target: str, checkpoint: Path) -> bool:
    """True for a public name in one of the libraries, or in a module of the project that has not come with the checkpoint."""
    if any(part.startswith("_") for part in target.split(".")) or _is_below(target, _LOAD_NETWORKS):
        return False
    own = [folder / target.partition(".")[0] for folder in (project().resolve(), project().resolve() / "src")]
    files = any(place.with_suffix(".py").is_file() and place.parent != checkpoint.parent for place in own)
    folders = any((place / "__init__.py").is_file() and place not in checkpoint.parents for place in own)
    return _is_below(target, _LIBRARIES) or files or folders


def _is_below(name: str, modules: Sequence[str]) -> bool:
    return name.startswith(tuple(f"{module}." for module in modules))


@contextmanager
def _unpickling_nothing() -> Iterator[None]:
    """Load pretrained weights as data: torchvision loads them with weights_only=False from a cache that it does not check."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch.load reads it
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


def load_weights(model: nn.Module, key: str, path: Path, without: str | None = None) -> None:
    """Load all tensors except those whose names match `without`, a regular expression: these stay as they are.

    Raises ConfigError, naming the config key, for a checkpoint of another model.
    """
    if isinstance(model, LightningModule):
        model.configure_model()  # which Lightning, too, calls more than once
    saved = read_for(model, key, path, without, ["state_dict"], is_whole=True)["state_dict"]
    names = model.state_dict().keys()
    loaded = {name: tensor for name, tensor in saved.items() if without is None or not re.search(without, name)}
    model.load_state_dict(loaded, strict=without is None and getattr(model, "strict_loading", True))
    if without is None:
        return
    drawn, unused = sorted(names - loaded.keys()), sorted(saved.keys() - loaded.keys())
    if not drawn and not unused:
        raise config_error("init_without", without, f"is found in no name; use part of one such as {next(iter(saved))}")
    lists = {"taken": sorted(loaded), "not taken": unused, "as initialised": drawn}
    log.info(f"{key}={path}: " + "; ".join(f"{what}: {', '.join(some) or 'nothing'}" for what, some in lists.items()))


def read_for(
    model: nn.Module, key: str, path: Path, without: str | None = None, whole: Sequence[str] = (), is_whole: bool = False
) -> dict[str, Any]:
    """Read a checkpoint whose tensors, except those that match `without`, have the names and shapes of the model's. A module may
    make layers in hooks of Lightning's; unless it `is_whole`, the checkpoint of one that does may have more tensors.

    Raises ConfigError, naming the config key, for another.
    """
    checkpoint = read_checkpoint(key, path, whole)
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise config_error(key, path, "not a Lightning checkpoint: it has no state_dict")
    saved = checkpoint["state_dict"] = _named_as_in(model, checkpoint["state_dict"])
    current = model.state_dict()
    asked = current.keys() if not is_whole and _makes_layers_later(model) else saved.keys() | current.keys()
    if not getattr(model, "strict_loading", True):  # a LightningModule's checkpoints may lack some, a frozen encoder say
        asked = saved.keys() & current.keys()
    for name in sorted(name for name in asked if without is None or not re.search(without, name)):
        if name not in saved or name not in current:
            only = "model" if name in current else "checkpoint"
            raise config_error(key, path, f"of another model: {name} is only in the {only}")
        if saved[name].shape != current[name].shape:
            shapes = f"{tuple(saved[name].shape)} there, {tuple(current[name].shape)} in the model"
            raise config_error(key, path, f"of another model: {name} is {shapes}")
    return checkpoint


def load_compiled_or_not(model: nn.Module) -> None:
    """Let a model take tensors that were saved when its nets were compiled or were not: a hook may compile them, `setup` say."""
    model.register_load_state_dict_pre_hook(_rename)


def _rename(model: nn.Module, state: dict[str, Any], *_: Any) -> None:
    renamed = _named_as_in(model, state)
    state.clear()
    state.update(renamed)


def _named_as_in(model: nn.Module, saved: Mapping[str, Any]) -> dict[str, Any]:
    own = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    names = {name.replace(_COMPILED, ""): name for name, _ in own}
    return {names.get(name.replace(_COMPILED, ""), name): value for name, value in saved.items()}


def _makes_layers_later(model: nn.Module) -> bool:
    """Return whether a hook of a class of the user's own may make layers."""
    kind: Any = type(model)
    hooks = (kind.configure_model, kind.setup) if isinstance(model, LightningModule) else ()
    return any(not hook.__module__.startswith(("lightning.", "lockstep.")) for hook in hooks)
