"""Models and weights from checkpoints."""

import logging
import re
from collections.abc import Collection
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
_NO_CONFIG = (
    "does not say what it is built of; use a checkpoint of a model of lockstep.models. "
    "That of another LightningModule is read by its load_from_checkpoint"
)
# Modules whose networks, optimizers, schedules and metrics a checkpoint may name, and those of them whose metrics load networks.
_FUNCTIONS_TOO = ("lockstep.", "torchvision.models.")
_LIBRARIES = (*_FUNCTIONS_TOO, "torch.nn.", "torch.optim.", "torchmetrics.")
_LOAD_NETWORKS = tuple(f"torchmetrics.{name}." for name in ("audio", "image", "multimodal", "text", "video"))


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
    if "${" in str(model_config):  # Hydra would resolve it, to a target that was not checked
        raise config_error("checkpoint", path, "has an interpolation, ${...}, in the config of its model; use values alone")
    try:
        for key, part in targets_in(model_config):
            if part["_target_"] not in allow:
                _check_part(key, str(part["_target_"]))
        model = build_model(model_config)
    except ConfigError as error:
        raise config_error("checkpoint", path, str(error)) from error
    load_weights(model, "checkpoint", path)
    return model.eval()


def _check_part(key: str, target: str) -> None:
    """Raise ConfigError, before anything is imported, unless the target is a part of a model in a library or in the project."""
    module = target.partition(".")[0]
    files = (folder / name for folder in (project(), project() / "src") for name in (f"{module}.py", f"{module}/__init__.py"))
    if not target.startswith(_LOAD_NETWORKS) and (target.startswith(_LIBRARIES) or any(file.is_file() for file in files)):
        part = get_object(target)
        kinds = [part] if isinstance(part, type) else []
        if isinstance(part, FunctionType) and part.__module__.startswith(_FUNCTIONS_TOO):
            kinds = [*get_type_hints(part).values()]
        if any(isinstance(kind, type) and issubclass(kind, nn.Module | Optimizer | LRScheduler) for kind in kinds):
            return
    accepted = "use networks, optimizers, schedules and metrics of lockstep, torch, torchvision, torchmetrics and of the"
    how = f"project, or load_model(PATH, allow=[{target!r}])"
    raise config_error(f"{key}._target_", target, f"a checkpoint may not name that; {accepted} {how}")


def load_weights(model: nn.Module, key: str, path: Path, without: str | None = None) -> None:
    """Load all tensors except those whose names match `without`, a regular expression: these stay as they are.

    Raises ConfigError, naming the config key, for a checkpoint of another model.
    """
    if isinstance(model, LightningModule):
        model.configure_model()  # which Lightning, too, calls more than once
    checkpoint = read_checkpoint(key, path, ["state_dict"])
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise config_error(key, path, "not a Lightning checkpoint: it has no state_dict")
    saved = checkpoint["state_dict"]
    loaded = {name: tensor for name, tensor in saved.items() if without is None or not re.search(without, name)}
    try:
        drawn, unknown = model.load_state_dict(loaded, strict=False)
    except RuntimeError as error:  # of shapes, with a line for each tensor
        raise config_error(key, path, f"of another model: {' '.join(str(error).split())}") from error
    lacking = [name for name in drawn if without is None or not re.search(without, name)]
    if (lacking or unknown) and getattr(model, "strict_loading", True):
        where = "model" if lacking else "checkpoint"
        raise config_error(key, path, f"of another model: {(lacking + unknown)[0]} is only in the {where}")
    if without is None:
        return
    unused = sorted(saved.keys() - loaded.keys())
    if not drawn and not unused:
        raise config_error("init_without", without, f"is found in no name; use part of one such as {next(iter(saved))}")
    lists = {"taken": sorted(loaded), "not taken": unused, "as initialised": sorted(drawn)}
    log.info(f"{key}={path}: " + "; ".join(f"{what}: {', '.join(some) or 'nothing'}" for what, some in lists.items()))
