"""Models and weights from checkpoints."""

import logging
import re
from pathlib import Path
from typing import Any

from lightning import LightningModule
from omegaconf import OmegaConf
from torch import nn

from lockstep.checkpointing import read_checkpoint
from lockstep.datamodules.base import DataSpec
from lockstep.errors import config_error
from lockstep.launchers.environment import register_resolvers
from lockstep.models.from_config import build_model
from lockstep.places import import_from_project
from lockstep.runs.saved import FILE, read_config

log = logging.getLogger(__name__)


def load_model(checkpoint: str | Path, group: Any = None) -> Any:
    """Return a trained model from a checkpoint, on the CPU and in evaluation mode, without Hydra's command line.

    It is built from a model group in plain containers; by default that of the config in the run's directory, which the checkpoint
    lies in. A checkpoint has shapes and weights, and runs nothing.
    """
    path = Path(checkpoint)
    if group is None:
        if (cfg := read_config(path.absolute().parents[1])) is None:
            raise config_error("checkpoint", path, f"is in no run's directory, whose {FILE} names its model; pass a model group")
        import_from_project()
        register_resolvers()
        group = OmegaConf.to_container(cfg.model, resolve=True)
    spec = (read_checkpoint("checkpoint", path, whole=()).get("hyper_parameters") or {}).get("spec")
    if spec is None:
        fix = "use one of a class of lockstep.models. That of another LightningModule is read by its load_from_checkpoint"
        raise config_error("checkpoint", path, f"does not say the shapes of its data; {fix}")
    model = build_model(group, DataSpec(**spec))
    load_weights(model, "checkpoint", path)
    return model.eval()


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
