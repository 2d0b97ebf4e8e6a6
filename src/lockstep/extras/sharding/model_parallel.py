"""Models larger than one device: each process holds a part of weights, gradients and optimizer states.

torch's fully_shard (FSDP2) and parallelize_module, which Lightning's ModelParallelStrategy expects a model to call on itself, in
configure_model. Here they are applied to any model as it is, so that neither it nor what trains it knows of them.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning import Trainer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.optim import Optimizer

from lockstep.console import join_first
from lockstep.errors import check_at_least, config_error
from lockstep.extras.sharding.divided import DividedModel
from lockstep.extras.sharding.shards import local_tensor, map_tensors, norm
from lockstep.trainer.batchnorm import Synchronised, is_batchnorm

# torch's division of a linear layer by a key of the plan, and the dimension that it divides.
STYLES: dict[str, tuple[type[ParallelStyle], str]] = {
    "colwise": (ColwiseParallel, "out_features"),
    "rowwise": (RowwiseParallel, "in_features"),
}


class ModelParallel(DividedModel):
    """A DividedModel of any model, which need not know of it.

    Rank zero has the whole of weights and optimizer states, on the CPU, while it saves them, unless each process saves its own.
    Models are built whole, on the CPU.

    Args:
        blocks: a regular expression. A module in whose name it is found is gathered before it computes and freed afterwards,
            by itself; parameters in no such module, with the child of the model that they are in.
        tensor_parallel_size: processes among which the linear layers of `plan` are divided; they take the same samples.
        plan: regular expressions for the names of linear layers. Each process has some outputs of `colwise` layers, which it
            gives to a `rowwise` one, of which it has the inputs; the sum over the processes is whole again.
        sharded_checkpoints: whether each process writes what it holds to a file of its own; see lockstep.extras.sharding.parts.
    """

    def __init__(
        self,
        *,
        world_size: int,
        timeout: float,
        process_group_backend: str | None,
        blocks: str,
        tensor_parallel_size: int = 1,
        plan: Mapping[str, str] | None = None,
        sharded_checkpoints: bool = False,
    ) -> None:
        super().__init__(
            data_parallel_size=world_size // tensor_parallel_size,
            tensor_parallel_size=tensor_parallel_size,
            save_distributed_checkpoint=False,
            process_group_backend=process_group_backend,
            timeout=timedelta(seconds=timeout),
        )
        check_at_least(1, tensor_parallel_size=tensor_parallel_size)
        for pattern in (blocks, *(plan or {}).values()):
            re.compile(pattern)  # raises re.error if it is invalid
        self.planned_world_size, self.blocks = world_size, blocks
        self.tensor_parallel_size, self.plan, self.sharded_checkpoints = tensor_parallel_size, plan, sharded_checkpoints
        if 1 < tensor_parallel_size <= world_size and plan is None:
            needs = "says which layers are divided; use a group: trainer/plan=OPTION chooses one"
            raise config_error("trainer.strategy.plan", "null", needs)

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        self._without_fused()

    def _without_fused(self) -> None:
        """Switch off kernels that make a whole step, of which torch has not all for sharded tensors; those for many tensors at
        once take none that are divided differently."""
        names = ("fused", "foreach") if self.tensor_parallel_size > 1 else ("fused",)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            group.update({name: False for name in names if name in group})

    def parallelize(self, model: nn.Module) -> None:
        """Leave this process its part of each parameter; a model that is in parts already stays as it is."""
        if any(isinstance(module, FSDPModule) for module in model.modules()):
            return
        _check_norms(model, self.tensor_parallel_size)
        units = _units(model, self.blocks)
        self._begin_as_rank_zero(model)
        if self.plan is not None and self.tensor_parallel_size > 1:
            self._divide_layers(model, self.plan)
        # Over gloo torch asks for a mean of what is float32 and gets the sum (pytorch issue 162338), but not of what is float64.
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float64 if dist.get_backend() == "gloo" else None)
        for unit in units:
            fully_shard(unit, mesh=self.device_mesh["data_parallel"], mp_policy=policy, reshard_after_forward=True)

    def _divide_layers(self, model: nn.Module, plan: Mapping[str, str]) -> None:
        torch.backends.mha.set_fastpath_enabled(False)  # torch's encoder layers read weights there that are in parts
        linear = [(name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear]
        for key, pattern in plan.items():
            style, divided = STYLES[key]
            if not (matches := [(name, layer) for name, layer in linear if re.search(pattern, name)]):
                some = join_first([name for name, _ in linear]) or "a model that has one"
                raise config_error(f"trainer.strategy.plan.{key}", pattern, f"matches no linear layer; use part of {some}")
            for name, layer in matches:
                if (features := getattr(layer, divided)) % self.tensor_parallel_size:
                    needs = f"does not divide the {features} {divided} of {name}; use a divisor, or a plan without it"
                    raise config_error("trainer.strategy.tensor_parallel_size", self.tensor_parallel_size, needs)
                parallelize_module(layer, self.device_mesh["tensor_parallel"], style())

    def _clip_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clip as torch.nn.utils.clip_grad_norm_ does, which does not take gradients that are divided differently."""
        parameters = self.precision_plugin.main_params(optimizer)
        if gradients := [parameter.grad for parameter in parameters if parameter.grad is not None]:
            factor = (clip_val / (norm(gradients) + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                local_tensor(gradient).mul_(factor)

    def _gathered(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Gather one tensor at a time, to the CPU of rank zero."""

        def full(tensor: Tensor, _: Any) -> Tensor | None:
            if not isinstance(tensor, DTensor):
                return tensor
            gathered = tensor.full_tensor()
            return gathered.detach().contiguous().cpu() if self.is_global_zero else None

        return map_tensors(checkpoint, full)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        super().load_optimizer_state_dict(checkpoint)
        self._without_fused()


def _units(model: nn.Module, blocks: str) -> list[nn.Module]:
    """Return the modules that are gathered together, from the inside outward: the outermost ones that are called, and blocks.

    Raises ConfigError for a parameter that is in none of them, or in two: torch would shard each copy for itself.
    """
    named = ((name, module) for name, module in model.named_modules() if next(module.parameters(), None) is not None)
    called = {name: module for name, module in named if name and type(module).forward is not nn.Module.forward}
    outermost = [name for name in called if not any(name.startswith(f"{other}.") for other in called)]
    units = [called[name] for name in reversed(called) if name in outermost or re.search(blocks, name)]
    owners: dict[Tensor, set[nn.Module]] = {parameter: set() for parameter in model.parameters()}
    claimed: set[nn.Module] = set()
    for unit in units:
        own = {*unit.modules()} - claimed
        claimed |= own
        for parameter in (parameter for module in own for parameter in module.parameters(recurse=False)):
            owners[parameter].add(unit)
    for name, parameter in model.named_parameters():
        if not owners[parameter]:
            needs = f"{name} is in no layer that is called; use a model whose parameters are in layers, or trainer=ddp"
            raise config_error("trainer.strategy._target_", f"{__name__}.ModelParallel", needs)
        if len(owners[parameter]) > 1:
            raise config_error("trainer.strategy.blocks", blocks, f"two blocks share {name}; use a pattern with both in one")
    return units


def _check_norms(model: nn.Module, tensor_parallel_size: int) -> None:
    for name, layer in model.named_modules():
        if is_batchnorm(layer) and tensor_parallel_size > 1:
            needs = f"{name} would count a sample once for each process that has it; accepted for a model with BatchNorm is 1"
            raise config_error("trainer.strategy.tensor_parallel_size", tensor_parallel_size, needs)
        if is_batchnorm(layer) and not isinstance(layer, Synchronised):
            needs = f"{name} would have statistics of its own on each process, of which one is saved; accepted here is true"
            raise config_error("trainer.sync_batchnorm", "false", needs)
