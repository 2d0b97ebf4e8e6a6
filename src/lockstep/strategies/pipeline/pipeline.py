"""Models larger than one device: a net's layers in stages, each on a process of its own (Huang et al. 2019, arXiv:1811.06965).

A model has the same form and names on every process: parameters of other stages are on torch's meta device, and an
optimizer passes over them, as they never have a gradient.
"""

from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.errors import check_at_least, config_error
from lockstep.models.supervised import Supervised
from lockstep.strategies.pipeline.stages import Stage, layers_of
from lockstep.strategies.sharding.model_parallel import ModelParallel
from lockstep.strategies.sharding.parts import map_tensors
from lockstep.trainer.batchnorm import is_batchnorm


class Pipeline(ModelParallel):
    """Each process has some layers, and all take the same samples. Checkpoints are those of ModelParallel, in one file.

    Args:
        stages: the number of processes.
        microbatches: equal parts of each batch; fewer for a batch that they do not divide. The backward pass of each begins as
            soon as it can, so that a stage keeps the activations of no more micro-batches than there are stages (1F1B:
            Narayanan et al. 2019, arXiv:1806.03377).
    """

    has_parts = True

    def __init__(
        self,
        *,
        world_size: int,
        timeout: float,
        process_group_backend: str | None,
        stages: int,
        microbatches: int,
    ) -> None:
        check_at_least(1, stages=stages, microbatches=microbatches)
        if world_size not in (1, stages):
            needs = f"is not the number of processes; use {world_size}, or trainer.devices={stages}"
            raise config_error("trainer.strategy.stages", stages, needs)
        group = {"world_size": world_size, "timeout": timeout, "process_group_backend": process_group_backend}
        super().__init__(**group, blocks="", tensor_parallel_size=world_size, plan={})
        self.stages, self.microbatches = stages, microbatches
        self._tied: list[nn.Parameter] = []  # of the first and the last stage

    def _without_fused(self) -> None:
        """Leave the optimizer as it is: a stage has whole tensors."""

    def model_to_device(self) -> None:
        """Move nothing: the stage of this process is on its device already."""

    def parallelize(self, model: Any) -> None:
        """Leave this process its stage of the model, on its device, which is computed by stages from here on."""
        if any(parameter.is_meta for parameter in self.lightning_module.parameters()):  # pyright: ignore[reportOptionalMemberAccess]
            if model is not self.lightning_module:
                raise config_error("callbacks.ema", "...", "a pipeline has no average of its weights; use null, or trainer=fsdp")
            return
        check_model(model, self.stages)
        stages = [_parameters(model.net, stage, self.stages) for stage in range(self.stages)]
        self._begin_as_rank_zero(model)
        tied = [parameter for parameter in model.net.parameters() if parameter in stages[0] & stages[-1]]
        ends: Any = dist.new_group([0, self.stages - 1]) if tied else None
        self._tied = tied if self.global_rank in (0, self.stages - 1) else []
        _leave_only(model, stages[self.global_rank], self.root_device)
        context = self.precision_plugin.train_step_context
        self._computed = Stage(model, self.root_device, context, self.microbatches, self._tied, ends)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call it without the precision plugin's context, which is for forward passes alone: each enters it by itself."""
        assert self.lightning_module is not None
        return self.lightning_module.training_step(*args, **kwargs)

    def _part_of_norm(self, parameter: Tensor) -> float:
        """Count a parameter of both ends once, in the first stage."""
        return float(self.global_rank == 0 or not any(parameter is tied for tied in self._tied))

    def _gathered(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        own = map_tensors(checkpoint, lambda tensor, _: tensor if tensor.is_meta else tensor.detach().cpu())
        parts: list[Any] | None = [None] * self.stages if self.is_global_zero else None
        dist.gather_object(own, parts)
        return checkpoint if parts is None else reduce(_merged, parts)


def _merged(first: Any, other: Any) -> Any:
    """Return the containers of one stage with what it lacks of another's: tensors' content, and the states of parameters."""
    if isinstance(first, Tensor):
        return other if first.is_meta else first
    if isinstance(first, dict):
        pairs = {
            key: _merged(first[key], other[key]) if key in first and key in other else value
            for key, value in {**other, **first}.items()
        }
        return {key: pairs[key] for key in sorted(pairs)} if all(isinstance(key, int) for key in pairs) else pairs
    return [_merged(*pair) for pair in zip(first, other, strict=True)] if type(first) is list else first


def check_model(model: Any, stages: int) -> None:
    """Raise ConfigError for a model that so many stages can't compute, or not exactly."""
    if not isinstance(model, Supervised):
        needs = "has no net and no optimizer that stages can divide; use a lockstep.models.Supervised"
        raise config_error("model._target_", type(model).__name__, needs)
    net: Any = model.net
    if net._compiled_call_impl is not None:
        why = "compiles the net's forward pass, of which each stage computes a part in another way; use false"
        raise config_error("model.compile", "true", why)
    if why := _why_not(model, net):
        raise config_error("model.net._target_", type(net).__name__, why)
    for stage in range(stages):
        if not any(parameter.requires_grad for parameter in _parameters(net, stage, stages)):
            raise config_error("trainer.strategy.stages", stages, f"stage {stage} has nothing to train; use fewer")


def _why_not(model: Supervised, net: Any) -> str | None:
    if not all(hasattr(net, name) for name in ("layers", "stage", "stage_ends")):
        needs = "has no layers, stage(inputs, x, layers) and stage_ends, by which it is cut; use model=vit, model=gpt"
        return f"{needs}, or a net that has them"
    cut = {parameter for stage in range(len(net.layers)) for parameter in _parameters(net, stage, len(net.layers))}
    for name, parameter in model.named_parameters():
        if parameter not in cut:
            return f"{name} is in no stage; use a net whose layers and stage_ends have all parameters of the model"
    for name, layer in net.named_modules():
        if is_batchnorm(layer):
            return f"{name} would have the statistics of a micro-batch; use a net without BatchNorm"
    return None


def _parameters(net: Any, stage: int, stages: int) -> set[nn.Parameter]:
    """Return the parameters that a stage computes with."""
    parts: list[Any] = [net.layers[number] for number in layers_of(stage, stages, len(net.layers))]
    names = (*(net.stage_ends[0] if stage == 0 else ()), *(net.stage_ends[1] if stage == stages - 1 else ()))
    parts += [getattr(net, name) for name in names]
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return {part for part in parts if isinstance(part, nn.Parameter)} | {p for module in modules for p in module.parameters()}


def _leave_only(model: nn.Module, own: set[nn.Parameter], device: torch.device) -> None:
    """Move the model to the device, except the parameters that are not the stage's own: these are left without numbers."""
    empty = {p: nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in model.parameters() if p not in own}
    places = [(module, name, p) for module in model.modules() for name, p in module.named_parameters(recurse=False)]
    gone = [(module, name, empty[parameter]) for module, name, parameter in places if parameter in empty]
    for module, name, _ in gone:
        module.register_parameter(name, None)
    model.to(device)
    for module, name, parameter in gone:
        module.register_parameter(name, parameter)
