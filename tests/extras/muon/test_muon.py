"""Muon, against singular values and updates worked out by hand."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from in_process import trained
from torch import Tensor, nn

from lockstep.errors import ConfigError
from lockstep.extras.muon.optimizer import Muon, orthogonalized
from lockstep.models.param_groups import make_optimizer

SGD = partial(torch.optim.SGD, lr=0.5)


def matrix(rows: int, columns: int, smallest: float = 0.1) -> Tensor:
    """In float64, with singular values from 1 down to `smallest`."""
    generator = torch.Generator().manual_seed(rows * 100 + columns)
    u, _, v = torch.linalg.svd(torch.randn(rows, columns, generator=generator, dtype=torch.float64), full_matrices=False)
    return u * torch.linspace(1.0, smallest, min(rows, columns), dtype=torch.float64) @ v


def by_svd(matrix: Tensor, steps: int) -> Tensor:
    """The iteration is the same odd polynomial of every singular value."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / (s.square().sum().sqrt() + 1e-7)
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ v


@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4), (1, 6), (6, 1)])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_the_iteration_is_its_polynomial_of_the_singular_values(shape: tuple[int, int], steps: int) -> None:
    result = orthogonalized(matrix(*shape), steps)
    assert result.shape == shape
    torch.testing.assert_close(result, by_svd(matrix(*shape), steps), rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6)])
def test_after_five_steps_an_update_is_orthogonal_within_the_iteration_s_tolerance(shape: tuple[int, int]) -> None:
    """Singular values of 0.7 to 1.2 are what its authors trade convergence for; the directions are those of U V^T."""
    given = matrix(*shape)
    u, _, v = torch.linalg.svd(given, full_matrices=False)
    along = (u.mT @ orthogonalized(given, 5) @ v.mT).diagonal()
    assert along.min() > 0.65
    assert along.max() < 1.25
    rest = u.mT @ orthogonalized(given, 5) @ v.mT - along.diag()
    assert rest.abs().max() < 1e-12


def test_nothing_stays_nothing() -> None:
    assert torch.equal(orthogonalized(torch.zeros(3, 4), 5), torch.zeros(3, 4))


def muon(params: Any, **options: Any) -> Muon:
    return Muon(params, **{"rest": SGD, "lr": 0.1, "momentum": 0.5, "nesterov": False} | options)


def stepped(parameters: list[nn.Parameter], *gradients: Tensor, **options: Any) -> list[Tensor]:
    """After a step with each gradient for every parameter."""
    optimizer = muon(parameters, **options)
    for gradient in gradients:
        for parameter in parameters:
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("nesterov", [False, True])
def test_two_steps_by_hand(nesterov: bool) -> None:
    first, second = matrix(3, 6), matrix(3, 6, smallest=0.5).flip(0)
    weight = nn.Parameter(torch.ones(3, 6, dtype=torch.float64))
    stepped([weight], first, second, nesterov=nesterov, weight_decay=0.2)
    sums = [first, 0.5 * first + second]
    used = [g + 0.5 * b for g, b in zip((first, second), sums, strict=True)] if nesterov else sums
    expected = torch.ones(3, 6, dtype=torch.float64)
    for direction in used:
        expected = expected * (1 - 0.1 * 0.2) - 0.1 * by_svd(direction, 5)
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-12)


def test_a_tall_matrix_moves_further() -> None:
    """By sqrt(rows / columns): its update then changes outputs as much as that of a square one."""
    weight = nn.Parameter(torch.zeros(8, 2, dtype=torch.float64))
    stepped([weight], matrix(8, 2))
    torch.testing.assert_close(weight.detach(), -0.1 * 2.0 * by_svd(matrix(8, 2), 5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_filter_is_a_matrix_with_a_row_for_each_output(layout: torch.memory_format) -> None:
    gradient = matrix(4, 18)
    filters = nn.Parameter(torch.zeros(4, 2, 3, 3, dtype=torch.float64).to(memory_format=layout))
    stepped([filters], gradient.view(4, 2, 3, 3).to(memory_format=layout))
    torch.testing.assert_close(filters.detach().flatten(1), -0.1 * by_svd(gradient, 5), rtol=0, atol=1e-12)


def test_normalised_weights_have_a_norm_of_sqrt_rows_before_each_update() -> None:
    weight = nn.Parameter(torch.full((3, 6), 7.0, dtype=torch.float64))
    stepped([weight], matrix(3, 6), normalize=True)
    expected = torch.full((3, 6), math.sqrt(3 / 18), dtype=torch.float64) - 0.1 * by_svd(matrix(3, 6), 5)
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-12)


def test_in_bfloat16_only_float32_is_iterated() -> None:
    both = [nn.Parameter(torch.zeros(3, 6, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    for parameter in both:
        stepped([parameter], matrix(3, 6).to(parameter.dtype), bfloat16=True)
    exact = -0.1 * by_svd(matrix(3, 6), 5)
    torch.testing.assert_close(both[1].detach(), exact, rtol=0, atol=1e-12)
    off = (both[0].detach() - exact).abs().max()
    assert 1e-5 < off < 0.02  # eight bits, and slopes of up to 3.4 a step: a fifth of the rate of 0.1 at most


def test_vectors_and_what_is_told_so_go_to_the_other_optimizer() -> None:
    weight, bias, head = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, 2))
    optimizer = muon([{"params": [weight, bias]}, {"params": [head], "orthogonalize": False, "lr": 0.25}])
    for parameter in (weight, bias, head):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert bias.tolist() == [0.5, 0.5]  # SGD's 1 - 0.5
    assert head.tolist() == [[0.75, 0.75], [0.75, 0.75]]
    assert not torch.allclose(weight, torch.tensor(0.5))
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1, 1]


def test_the_state_of_both_is_saved_and_goes_on_bit_for_bit() -> None:
    def parameters() -> list[nn.Parameter]:
        return [nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3))]

    def step(optimizer: Muon, number: int) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        optimizer.step()

    rest = partial(torch.optim.AdamW, lr=0.1)
    whole, first, second = parameters(), parameters(), parameters()
    optimizer, half = muon(whole, rest=rest), muon(first, rest=rest)
    for number in range(4):
        step(optimizer, number)
    for number in range(2):
        step(half, number)
    half.param_groups[1]["lr"] = 0.1  # what a schedule has set is in the groups
    again = muon(second, rest=partial(torch.optim.AdamW, lr=9.0))
    with torch.no_grad():
        for to, of in zip(second, first, strict=True):
            to.copy_(of)
    again.load_state_dict(half.state_dict())
    for number in range(2, 4):
        step(again, number)
    assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True))


def test_a_run_is_resumed_bit_for_bit(tmp_path: Any) -> None:
    """The last of three epochs again, from the checkpoint after the second."""
    options = ("model/optimizer=muon", "guards.checkpoint.every_n_steps=null", "model/lr_scheduler=linear")
    options += ("+model.param_groups.last={match: 'layers.4', orthogonalize: false, lr_factor: 2.0, until: 0.5}",)
    whole, _ = trained(tmp_path / "whole", *options)
    previous = tmp_path / "whole" / "checkpoints" / "previous.ckpt"
    again, trainer = trained(tmp_path / "again", *options, ckpt_path=previous)
    assert trainer.global_step == whole["global_step"]
    loop: Any = trainer.fit_loop.epoch_loop
    assert getattr(loop, "_plain", loop) is not None  # such steps go the short way too, where there is one
    for name, value in whole["state_dict"].items():
        assert torch.equal(again["state_dict"][name], value), name


def test_a_group_of_muon_may_have_options_of_either_optimizer() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    make = partial(Muon, rest=SGD, lr=0.125)
    named = {"last": {"match": r"^1\.", "orthogonalize": False, "lr_factor": 2, "dampening": 0.5}}
    matrix, bias, last = make_optimizer(make, net, named).param_groups
    assert [group["lr"] for group in (matrix, bias, last)] == [0.125, 0.5, 1.0]  # a factor is on the rate of its own optimizer
    assert [group["orthogonalize"] for group in (matrix, bias, last)] == [True, False, False]
    assert [group.get("dampening") for group in (matrix, bias, last)] == [None, 0, 0.5]


def test_without_a_matrix_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.optimizer._target_=lockstep.extras.muon.optimizer.Muon: there is no matrix"):
        muon([nn.Parameter(torch.zeros(3))])
