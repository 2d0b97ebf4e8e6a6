"""Muon: momentum, orthogonalised."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lockstep.errors import config_error
from lockstep.extras.dtensors.dtensors import full_tensor, shard_like

# Of Jordan et al. 2024, kellerjordan.github.io/posts/muon: they lift small singular values as fast as possible, at the price
# that all of them end between about 0.7 and 1.2 instead of at 1.
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalized(matrix: Tensor, steps: int) -> Tensor:
    """Roughly U V^T of a matrix U S V^T (rows, columns), by so many steps of a Newton-Schulz iteration in the matrix's type.

    Each step takes a singular value s, at first divided by the Frobenius norm, to 3.4445 s - 4.7750 s^3 + 2.0315 s^5. Zero
    stays zero.
    """
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix  # the smaller of the two Gram matrices
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


class Muon(Optimizer):
    """Momentum, orthogonalised, for matrices and convolution filters (outputs, inputs * height * width); another optimizer for
    parameters of fewer dimensions, and for those of groups with `orthogonalize: false` (embeddings, the last layer).

    Jordan et al. 2024, kellerjordan.github.io/posts/muon. torch.optim.Muon, which torch has since 2.9, takes matrices alone,
    iterates in bfloat16 whatever the parameters are, and leaves the others to a second optimizer, which Lightning does not
    step by itself. All ranks make the same update of the gradients that DDP has averaged. Of a matrix of which each process holds
    a part, all iterate over the whole: it is gathered once a step, where the iteration itself asks for some sixteen
    collectives.

    Args:
        rest: makes the other optimizer of the other parameters.
        lr: of the matrices; an update has a spectral norm of about lr * sqrt(max(1, rows / columns)).
        weight_decay: decoupled from the gradient, as in AdamW.
        ns_steps: of the iteration; see `orthogonalized`.
        normalize: scale each matrix to a Frobenius norm of sqrt(rows) before each update, as airbench94_muon.py of
            github.com/KellerJordan/cifar10-airbench does; for layers that a normalisation follows.
        bfloat16: iterate in bfloat16, which is as good for training, where the parameters are float32.
    """

    def __init__(
        self,
        params: Any,
        rest: Callable[..., Optimizer],
        lr: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        ns_steps: int = 5,
        normalize: bool = False,
        bfloat16: bool = False,
    ) -> None:
        self.make_rest, self.rest = rest, None
        own = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        own |= {"ns_steps": ns_steps, "normalize": normalize, "bfloat16": bfloat16}
        super().__init__(params, own | {"orthogonalize": True})
        if not any(group["orthogonalize"] for group in self.param_groups):
            accepted = "there is no matrix to orthogonalise; accepted is another optimizer"
            raise config_error("model.optimizer._target_", f"{__name__}.Muon", accepted)

    @property
    def group_options(self) -> set[str]:
        """What a group of parameters can be given: these options, or those of the other optimizer."""
        return {*self.defaults, *(() if self.rest is None else self.rest.defaults)}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Matrices and the others become a group each."""
        parameters, options = list(param_group["params"]), {key: v for key, v in param_group.items() if key != "params"}
        takes = options.pop("orthogonalize", True)
        matrices = [one for one in parameters if takes and one.ndim >= 2 and one.is_floating_point()]
        others = [one for one in parameters if not any(one is matrix for matrix in matrices)]
        if matrices:
            super().add_param_group({"params": matrices, **options})
        if others:
            self._add_to_rest({"params": others, "orthogonalize": False, **options})

    def _add_to_rest(self, group: dict[str, Any]) -> None:
        if self.rest is None:
            self.rest = self.make_rest([group])
            self.rest.state = self.state  # one state and one list of groups: for checkpoints and schedules it is one optimizer
        else:
            self.rest.add_param_group(group)
        self.param_groups.append(self.rest.param_groups[-1])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self.rest is not None:
            self.rest.state = self.state
            self.rest.param_groups = [group for group in self.param_groups if not group["orthogonalize"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"] if group["orthogonalize"] else ():
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)
        if self.rest is not None:
            self.rest.step()
        return loss

    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        direction = gradient.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
        if group["bfloat16"] and direction.dtype == torch.float32:
            direction = direction.bfloat16()
        matrix = full_tensor(direction).flatten(1)
        update = orthogonalized(matrix, group["ns_steps"]).to(parameter.dtype).reshape(parameter.shape)
        update = shard_like(update, parameter)
        rows, columns = matrix.shape
        if group["normalize"]:
            parameter.mul_(rows**0.5 / parameter.norm().clamp(min=1e-7))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)
