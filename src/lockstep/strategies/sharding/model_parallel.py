"""Models larger than one device: each process holds a part of weights, gradients and optimizer states.

torch's fully_shard (FSDP2) and parallelize_module, which Lightning's ModelParallelStrategy expects a model to call on itself, in
configure_model. Here they are applied to any model as it is, so that neither it nor what trains it knows of them.
"""

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.optim import Optimizer

from lockstep.checkpointing import naming_failed_write, read_checkpoint
from lockstep.console import join_first
from lockstep.errors import check_at_least, config_error
from lockstep.strategies.ddp import PlannedWorldSize
from lockstep.strategies.sharding.parts import Keys, local_tensor, map_tensors, shard_like, write_parts
from lockstep.trainer.batchnorm import is_batchnorm

# torch's division of a linear layer by a key of the plan, and the dimension that it divides.
STYLES: dict[str, tuple[type[ParallelStyle], str]] = {
    "colwise": (ColwiseParallel, "out_features"),
    "rowwise": (RowwiseParallel, "in_features"),
}


class ModelParallel(PlannedWorldSize, ModelParallelStrategy):
    """Lightning's ModelParallelStrategy for models that do not divide themselves in `configure_model`: `parallelize` does it.

    Rank zero has the whole of weights and optimizer states, on the CPU, while it saves them, unless each process saves its own.
    Models are built whole, on the CPU. A checkpoint is one plain file, as any other's, or with `sharded_checkpoints` see
    lockstep.strategies.sharding.parts.

    Args:
        blocks: a regular expression. A module in whose name it is found is gathered before it computes and freed afterwards,
            by itself; parameters in no such module, with the child of the model that they are in.
        tensor_parallel_size: processes among which the linear layers of `plan` are divided; they take the same samples.
        plan: regular expressions for the names of linear layers. Each process has some outputs of `colwise` layers, which it
            gives to a `rowwise` one, of which it has the inputs; the sum over the processes is whole again.
        sharded_checkpoints: whether each process writes what it holds to a file of its own.
    """

    # Lightning's own save and load by torch.distributed.checkpoint, without CheckpointIO, and pass callbacks over.
    restore_checkpoint_after_setup = ParallelStrategy.restore_checkpoint_after_setup  # pyright: ignore
    lightning_restore_optimizer = ParallelStrategy.lightning_restore_optimizer  # pyright: ignore
    lightning_module_state_dict = ParallelStrategy.lightning_module_state_dict
    optimizer_state = ParallelStrategy.optimizer_state

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
        units = _units(model, self.blocks)
        self._begin_as_rank_zero(model)
        if self.tensor_parallel_size > 1:
            self._divide_layers(model, self.plan or {})
        # Over gloo torch asks for a mean of what is float32 and gets the sum (pytorch issue 162338), but not of what is float64.
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float64 if dist.get_backend() == "gloo" else None)
        for unit in units:
            fully_shard(unit, mesh=self.device_mesh["data_parallel"], mp_policy=policy, reshard_after_forward=True)

    def _divide_layers(self, model: nn.Module, plan: Mapping[str, str]) -> None:
        if norms := [name for name, layer in model.named_modules() if is_batchnorm(layer)]:
            needs = f"{norms[0]} would count a sample once for each process that has it; use 1 for a model with BatchNorm"
            raise config_error("trainer.strategy.tensor_parallel_size", self.tensor_parallel_size, needs)
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

    @torch.no_grad()
    def _clip_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clip as torch.nn.utils.clip_grad_norm_ does, which does not take gradients that are divided differently; one
        all-reduce."""
        gradients = {one: one.grad for one in self.precision_plugin.main_params(optimizer) if one.grad is not None}
        total = torch.zeros((), dtype=torch.float64, device=self.root_device)
        for parameter, gradient in gradients.items():
            local = local_tensor(gradient)
            norm = torch.linalg.vector_norm(local, dtype=torch.promote_types(local.dtype, torch.float32))
            total += norm.double().square() * self._part_of_norm(parameter)
        dist.all_reduce(total)
        factor = (clip_val / (total.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in gradients.values():
            local_tensor(gradient).mul_(factor)

    def _part_of_norm(self, parameter: Tensor) -> float:
        """Return 1 / n if n processes hold the same numbers of the parameter as this one."""
        is_whole = not isinstance(parameter, DTensor)
        axes = () if is_whole else zip(parameter.placements, parameter.device_mesh.shape, strict=True)
        return math.prod(size for placement, size in axes if not placement.is_replicate()) / dist.get_world_size()

    def _gathered(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Gather one tensor at a time, to the CPU of rank zero."""

        def full(tensor: Tensor, _: Any) -> Tensor | None:
            if not isinstance(tensor, DTensor):
                return tensor
            gathered = tensor.full_tensor()
            return gathered.detach().contiguous().cpu() if self.is_global_zero else None

        return map_tensors(checkpoint, full)

    def setup(self, trainer: Trainer) -> None:
        assert self.accelerator is not None
        assert isinstance(self.lightning_module, LightningModule)
        self.accelerator.setup(trainer)
        if trainer.world_size > 1 and getattr(self.precision_plugin, "scaler", None) is not None:
            why = "its scaler of gradients does not see the parts that other processes have; use bf16-mixed, 32-true or 64-true"
            raise config_error("trainer.precision", "16-mixed", why)
        self.precision_plugin.convert_module(self.lightning_module)
        self.parallelize(self.lightning_module)
        self.model_to_device()
        self.precision_plugin.clip_grad_by_norm = self._clip_by_norm
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    @torch.no_grad()
    def _begin_as_rank_zero(self, model: nn.Module) -> None:
        """Broadcast rank zero's tensors as DDP does, one tensor at a time: the full model need not fit the device."""
        for tensor in (*model.parameters(), *model.buffers()):
            sent = tensor.detach().to(self.root_device).contiguous()
            dist.broadcast(sent, src=0)
            tensor.data = sent.to(tensor.device)  # fully_shard takes what is contiguous alone

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        if not self.sharded_checkpoints:
            return ParallelStrategy.save_checkpoint(self, self._gathered(checkpoint), filepath, storage_options)
        parts: dict[str, Tensor] = {}

        def take(tensor: Tensor, at: Keys) -> Tensor:
            if not isinstance(tensor, DTensor):
                return tensor
            parts["/".join(map(str, at))] = tensor
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

        rest = self._gathered(map_tensors(checkpoint, take))
        with naming_failed_write(filepath):
            write_parts(rest, parts, Path(filepath), (storage_options or {}).get("keep_as"))
        return None

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read weights from shards to where they are needed. Optimizer states follow when the optimizers are there."""
        if not self.sharded_checkpoints:
            return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only)
        assert self.lightning_module is not None
        checkpoint = read_checkpoint("checkpoint", Path(checkpoint_path), whole=())
        if (read_parts := checkpoint.get("tensor_files")) is not None:
            weights = self.lightning_module.state_dict()
            others = checkpoint.keys() - {"tensor_files", "optimizer_states"}
            read_parts(checkpoint, others, lambda _, at: weights.get(at[-1]) if at[0] == "state_dict" else None)
        return checkpoint

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load into a whole model, or, in a test after training, into one that is in parts."""
        assert self.lightning_module is not None
        current = self.lightning_module.state_dict()
        own = {name: shard_like(value, current.get(name)) for name, value in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(own, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        parameters = [[one for group in optimizer.param_groups for one in group["params"]] for optimizer in self.optimizers]

        def as_its_parameter(tensor: Tensor, at: Keys) -> Tensor:
            return torch.empty_like(parameters[at[1]][at[3]].detach(), dtype=tensor.dtype)

        if (read_parts := checkpoint.get("tensor_files")) is not None:
            read_parts(checkpoint, ["optimizer_states"], as_its_parameter)
        saved_states = checkpoint["optimizer_states"]  # a fork may have none
        for optimizer, own, saved in zip(self.optimizers, parameters, saved_states, strict=False):
            states = {
                number: {name: shard_like(value, own[number]) for name, value in state.items()}
                for number, state in saved["state"].items()
                if not own[number].is_meta
            }
            optimizer.load_state_dict({**saved, "state": states})
        self._without_fused()

    def teardown(self) -> None:
        super().teardown()
        self.checkpoint_io.teardown()  # Lightning's ModelParallelStrategy leaves it as it is


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
