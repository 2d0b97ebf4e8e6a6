"""Models and weights from checkpoints."""

import logging
import re
from pathlib import Path
from typing import Any

from lightning import LightningModule
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lockstep.checkpointing import read_checkpoint
from lockstep.config.construct import resolve, targets_in
from lockstep.datamodules.base import DataSpec
from lockstep.errors import ConfigError, config_error
from lockstep.models.from_config import build_model
from lockstep.places import import_from_project, project

log = logging.getLogger(__name__)
_PACKAGES = ("lockstep.", "torch.nn.", "torch.optim.", "torchvision.models.", "torchmetrics.")  # imported for a checkpoint
_FUNCTIONS_OF = ("lockstep.nets.", "lockstep.models.schedules", "torchvision.models.")


def load_model(checkpoint: str | Path, group: dict[str, Any] | None = None) -> Any:
    """Return a trained model from a checkpoint, on the CPU and in evaluation mode, without Hydra's command line.

    The checkpoint says what the model is built of, if no model group is given. It can name networks, optimizers, schedules and
    metrics of this package, torch, torchvision, torchmetrics and the project. Anything else is refused and not imported.
    """
    path = Path(checkpoint)
    import_from_project()
    model_config = read_checkpoint("checkpoint", path, whole=()).get("hyper_parameters")
    if not isinstance(model_config, dict) or not {"model", "spec"} <= model_config.keys():
        fix = "use one of a class of lockstep.models. That of another LightningModule is read by its load_from_checkpoint"
        raise config_error("checkpoint", path, f"does not say what it is built of; {fix}")
    try:
        if group is None:
            _check_parts(model_config)
        model = build_model(model_config["model"] if group is None else group, DataSpec(**model_config["spec"]))
    except ConfigError as error:
        raise config_error("checkpoint", path, str(error)) from error
    load_weights(model, "checkpoint", path)
    return model.eval()


def _check_parts(model_config: dict[str, Any]) -> None:
    """Raise ConfigError for a target that is no part of a model, and for an interpolation, which Hydra would resolve later."""
    if "${" in str(model_config):
        raise ConfigError("has an interpolation, ${...}, in the config of its model; use values alone")
    for key, node in targets_in(model_config):
        target = str(node["_target_"])
        if not _is_part(key, target):
            fix = "use networks, optimizers, schedules and metrics of lockstep, torch, torchvision, torchmetrics and the project"
            raise config_error(f"{key}._target_", target, f"a checkpoint may not name that; {fix}")


def _is_part(key: str, target: str) -> bool:
    """True for a class of networks, metrics, optimizers or schedules, and for a function that makes nets or schedules. Only
    these packages and the project's modules are imported."""
    root = target.partition(".")[0]
    modules = [folder / f"{root}{end}" for folder in (project(), project() / "src") for end in (".py", "/__init__.py")]
    if not target.startswith(_PACKAGES) and not any(module.is_file() for module in modules):
        return False
    part = resolve(key, target)
    if isinstance(part, type):
        return issubclass(part, nn.Module | Optimizer | LRScheduler)  # torchmetrics' metrics are modules
    return str(part.__module__).startswith(_FUNCTIONS_OF)


def load_weights(model: nn.Module, key: str, path: Path, without: str | None = None) -> None:
    """Load all tensors except those whose names match `without`, a regular expression: these stay as they are.

    Raises ConfigError, naming the config key, for a checkpoint of another model.
    """
    if isinstance(model, LightningModule):
        model.configure_model()  # which Lightning, too, calls more than once
    saved = read_checkpoint(key, path, ["state_dict"]).get("state_dict")
    if saved is None:
        raise config_error(key, path, "not a Lightning checkpoint: it has no state_dict")
    left_out = {name for name in {*saved, *model.state_dict()} if without is not None and re.search(without, name)}
    if without is not None and not left_out:
        raise config_error("init_without", without, f"is found in no name; use part of one such as {next(iter(saved))}")
    taken = {name: tensor for name, tensor in saved.items() if name not in left_out}
    kept = {name: tensor for name, tensor in model.state_dict().items() if name in left_out}
    try:
        model.load_state_dict(taken | kept, strict=getattr(model, "strict_loading", True))
    except RuntimeError as error:  # with a line for each tensor
        raise config_error(key, path, f"of another model: {' '.join(str(error).split())}") from error
    if left_out:
        log.info(f"{key}={path}: loaded {', '.join(sorted(taken)) or 'nothing'}; not loaded: {', '.join(sorted(left_out))}")
