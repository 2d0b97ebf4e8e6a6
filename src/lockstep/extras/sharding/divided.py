"""Base class of strategies under which a process has a part of the model, and checkpoints are plain files."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from lockstep.checkpointing import read_checkpoint
from lockstep.errors import config_error
from lockstep.extras.sharding.parts import tensor_name, write_parts
from lockstep.extras.sharding.shards import Keys, local_tensor, map_tensors, shard_like
from lockstep.trainer.strategies import PlannedWorldSize


class DividedModel(PlannedWorldSize, ModelParallelStrategy):
    """Lightning's ModelParallelStrategy for models that do not divide themselves in `configure_model`: `parallelize` does it.

    A checkpoint is one plain file, as any other's, or by `sharded_checkpoints` each process writes what it holds of DTensors to a
    file of its own: see lockstep.extras.sharding.parts. What is written in the background goes by a process group of its own, on
    which nothing else waits: ranks may be anywhere in training when they agree there that all have written.
    """

    sharded_checkpoints = False
    _writers: Any = None  # the process group of the threads that write in the background

    # Lightning's own save and load by torch.distributed.checkpoint, without CheckpointIO, and pass callbacks over.
    restore_checkpoint_after_setup = ParallelStrategy.restore_checkpoint_after_setup  # pyright: ignore
    lightning_restore_optimizer = ParallelStrategy.lightning_restore_optimizer  # pyright: ignore
    lightning_module_state_dict = ParallelStrategy.lightning_module_state_dict
    optimizer_state = ParallelStrategy.optimizer_state

    @abstractmethod
    def parallelize(self, model: Any) -> None:
        """Leave this process its part of a model."""

    @abstractmethod
    def _clip_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Clip gradients by their norm over all parts."""

    @abstractmethod
    def _gathered(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Return, on rank zero, the checkpoint with what other processes have of it. A collective."""

    def setup(self, trainer: Trainer) -> None:
        assert self.accelerator is not None
        assert isinstance(self.lightning_module, LightningModule)
        io: Any = self.checkpoint_io
        if self.sharded_checkpoints and io.asynchronous and self._writers is None:
            self._writers = dist.new_group(timeout=self._timeout, backend="gloo")
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
            ParallelStrategy.save_checkpoint(self, self._gathered(checkpoint), filepath, storage_options)
            return
        parts: dict[str, Tensor] = {}

        def take(tensor: Tensor, at: Keys) -> Tensor:
            if not isinstance(tensor, DTensor):
                return tensor
            parts[tensor_name(at)] = tensor
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

        rest = self._gathered(map_tensors(checkpoint, take))
        pieces = {name: local_tensor(part) for name, part in parts.items()}
        options = {"keep_as": (storage_options or {}).get("keep_as"), "group": self._writers}
        write = partial(write_parts, parts=parts, path=Path(filepath), **options)
        io: Any = self.checkpoint_io
        io.save({"rest": rest, "pieces": pieces}, Path(filepath), write)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read weights from shards to where they are needed. Optimizer states follow when the optimizers are there."""
        if not self.sharded_checkpoints:
            return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only)
        assert self.lightning_module is not None
        io: Any = self.checkpoint_io
        io.wait()
        checkpoint = read_checkpoint("checkpoint", Path(checkpoint_path), whole=())
        if (parts := checkpoint.get("tensor_files")) is not None:
            weights = self.lightning_module.state_dict()
            others = checkpoint.keys() - {"tensor_files", "optimizer_states"}
            parts.fill(checkpoint, others, lambda _, at: weights.get(at[-1]) if at[0] == "state_dict" else None)
        return checkpoint

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load into a whole model, or, in a test after training, into one that is in parts."""
        assert self.lightning_module is not None
        current = self.lightning_module.state_dict()
        is_elsewhere = {name for name, value in current.items() if isinstance(value, Tensor) and value.is_meta}
        own = {
            name: current[name] if name in is_elsewhere else shard_like(value, current.get(name))
            for name, value in checkpoint["state_dict"].items()
        }
        self.lightning_module.load_state_dict(own, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        parameters = [[one for group in optimizer.param_groups for one in group["params"]] for optimizer in self.optimizers]

        def as_its_parameter(tensor: Tensor, at: Keys) -> Tensor:
            return torch.empty_like(parameters[at[1]][at[3]].detach(), dtype=tensor.dtype)

        if (parts := checkpoint.get("tensor_files")) is not None:
            parts.fill(checkpoint, ["optimizer_states"], as_its_parameter)
        pairs = zip(self.optimizers, parameters, checkpoint["optimizer_states"], strict=False)  # a fork may have none
        for optimizer, own, saved in pairs:
            states = {
                number: {name: shard_like(value, own[number]) for name, value in state.items()}
                for number, state in saved["state"].items()
                if not own[number].is_meta
            }
            optimizer.load_state_dict({**saved, "state": states})

    def teardown(self) -> None:
        super().teardown()
        self.checkpoint_io.teardown()  # Lightning's ModelParallelStrategy leaves it as it is
