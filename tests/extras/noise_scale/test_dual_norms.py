"""Noise scales of signs and orthogonalised matrices: against closed forms, and of which optimizers they are."""

import importlib
import logging
import math
from pathlib import Path
from typing import Any

import linear_gradients as linear
import pytest
import torch
from bitwise import differences
from capabilities import requires
from faults import Poison
from in_process import KeepAll, composed, prepared, trained
from refusals import refusal
from torch import Tensor, nn
from torch.linalg import matrix_norm

from lockstep.extras.noise_scale.dual_norms import DualNorms
from lockstep.extras.noise_scale.noise_scale import NoiseScale
from lockstep.runs.results import collect_facts

EVERY = ("callbacks=noise_scale", "callbacks.noise_scale.every_n_steps=1", "callbacks.noise_scale.every_n_steps_alone=1")
STILL = ("model.optimizer.lr=1e-30", "datamodule.global_batch_size=64")
MUON = ("model/optimizer=muon", "model.optimizer.rest.lr=1e-30", *STILL)


class Planted:
    """Normal gradients of one matrix: a sample's is G + L z, with the rows' covariance columns * L L^T."""

    def __init__(self, shape: tuple[int, int], geometry: str, batches: float) -> None:
        """batches: how many batches of 64 the noise scale is."""
        self.generator, self.geometry = torch.Generator().manual_seed(0), geometry
        self.mean, mixing = self.normal(*shape), self.normal(shape[0], shape[0])
        self.mixing = torch.linspace(0.3, 2, shape[0], dtype=torch.float64)[:, None] * mixing
        signal, noise = self.norms()
        self.mixing *= math.sqrt(64 * batches) * signal / noise

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def norms(self) -> tuple[float, float]:
        """M and N."""
        rows, columns = self.mean.shape
        if self.geometry == "sign":
            return self.mean.abs().sum().item(), columns * self.mixing.norm(dim=1).sum().item()
        by_rows, by_columns = columns**0.5 * matrix_norm(self.mixing, "nuc"), columns * self.mixing.norm()
        return matrix_norm(self.mean, "nuc").item(), (by_rows if rows <= columns else by_columns).item()

    def gradient(self, samples: float) -> Tensor:
        return self.mean + self.mixing @ self.normal(*self.mean.shape) / samples**0.5

    def estimated(self, sizes: list[int], repeats: int) -> Tensor:
        """Means of M, N and the norm of the whole gradient itself."""
        parameter, samples, every = nn.Parameter(torch.zeros_like(self.mean)), sum(sizes), []
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.95)
        for _ in range(repeats):
            norms, parts = DualNorms([optimizer], self.geometry), [self.gradient(size) for size in sizes]
            for part, size in zip(parts, sizes, strict=True):
                norms.add(parameter, part, size)
            parameter.grad = sum((part * size for part, size in zip(parts, sizes, strict=True)), 0 * parameter.detach()) / samples
            optimizer.state[parameter]["momentum_buffer"] = 10 * self.gradient(
                19 * samples
            )  # as many batches as 0.9 averages over
            whole = parameter.grad.abs().sum() if self.geometry == "sign" else matrix_norm(parameter.grad, "nuc")
            every.append([*norms.estimate(len(sizes), samples, {}), whole.item()])
        return torch.tensor(every, dtype=torch.float64).mean(dim=0)


@pytest.mark.parametrize("sizes", [[32, 32], [24, 40], [16] * 4, [8] * 8], ids=str)
@pytest.mark.parametrize("shape", [(6, 10), (10, 6)], ids=str)
@pytest.mark.parametrize("geometry", ["sign", "spectral"])
def test_it_is_that_of_planted_gradients_whatever_the_parts(geometry: str, shape: tuple[int, int], sizes: list[int]) -> None:
    """The larger it is beside the batch, the more is M below its value. At four batches the norm of the whole gradient is mostly
    that of its noise: instead of M it would give a quarter of the noise scale."""
    within = 0.02 if geometry == "sign" else 0.13 if len(sizes) == 2 else 0.06  # of two parts, and a matrix with unequal columns
    for batches, least, most in ((1, 0.75, 1.25), (4, 0.75, 1.45)):
        planted = Planted(shape, geometry, batches)
        expected, noise = planted.norms()
        result = planted.estimated(sizes, repeats=200)
        scale = (noise / expected) ** 2
        assert scale == pytest.approx(64 * batches)
        assert result[1].item() == pytest.approx(noise, rel=within)
        assert 0.85 * expected < result[0].item() < 1.02 * expected
        assert least < (result[1] / result[0]).square().item() / scale < most
        assert batches < 4 or (result[1] / result[2]).square().item() / scale < 0.3


@pytest.mark.parametrize(
    ("geometry", "named", "options", "within"),
    [
        ("sign", "sign", ("model/optimizer=sgd", "model.optimizer.momentum=0.9"), 0.1),
        ("sign", "optimizer", ("model.optimizer._target_=linear_gradients.SignSGD",), 0.1),
        (
            "spectral",
            "spectral",
            ("model/optimizer=sgd", "model.optimizer.momentum=0.9", "trainer.accumulate_grad_batches=4"),
            0.1,
        ),
        pytest.param("spectral", "optimizer", MUON, 0.2, marks=requires("muon")),  # of halves
    ],
    ids=["sign", "of its name", "spectral", "Muon"],
)
def test_that_of_a_linear_regression_is_the_one_known_in_closed_form(
    geometry: str, named: str, options: tuple[str, ...], within: float, tmp_path: Path
) -> None:
    facts = linear.fitted(tmp_path, 64 * 300, "datamodule.drop_last=true", *STILL, *options, geometry=named).facts()
    signal, noise = linear.in_closed_form_by_dual_norms()[geometry]
    assert facts["noise_scale_estimates"] == 299  # the first step has no earlier gradient
    assert facts["noise_scale"] == pytest.approx((noise / signal) ** 2, rel=within)
    assert facts["noise_scale_gradient_squared"] == pytest.approx(signal**2, rel=within)
    assert facts["noise_scale_trace"] == pytest.approx(noise**2, rel=within)


@requires("muon")
def test_a_muon_is_measured_by_the_matrices_it_orthogonalises_each_by_the_length_of_its_step() -> None:
    optimizer_module: Any = importlib.import_module("lockstep.extras.muon.optimizer")
    layers = [nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 2)]
    groups = [{"params": [*layer.parameters()], "orthogonalize": layer is not layers[-1]} for layer in layers]
    optimizer = optimizer_module.Muon(groups, rest=torch.optim.AdamW, lr=0.1)
    blocks = DualNorms([optimizer], "optimizer").blocks
    assert {one: (block.is_spectral, block.step_length()) for one, block in blocks.items()} == {
        layers[0].weight: (True, 0.2),  # its updates have a spectral norm of the root of 16 / 4
        layers[1].weight: (True, 0.1),
    }


class Signum(torch.optim.SGD):
    pass


class Own(Signum):
    pass


@pytest.mark.parametrize(
    ("make", "geometry", "kinds"),
    [
        (torch.optim.SGD, "euclidean", []),
        (torch.optim.SGD, "optimizer", []),
        (torch.optim.Adam, "optimizer", []),
        (Own, "optimizer", [False, False]),
        (torch.optim.Adam, "sign", [False, False]),
        (torch.optim.Adam, "spectral", [True]),
    ],
)
def test_which_steps_are_a_sign_is_known_by_the_names_of_classes(make: Any, geometry: str, kinds: list[bool]) -> None:
    optimizer = make(nn.Linear(3, 2).parameters(), lr=0.1)
    assert [block.is_spectral for block in DualNorms([optimizer], geometry).blocks.values()] == kinds


@requires("muon")
@pytest.mark.parametrize(
    "options",
    [("model=mlp",), ("model=cnn", "model.net.width=4", "datamodule.drop_last=false", "trainer.accumulate_grad_batches=2")],
    ids=["halves", "accumulated"],
)
def test_training_is_the_same_to_the_bit_and_goes_on_with_its_estimate(options: tuple[str, ...], tmp_path: Path) -> None:
    options = (*options, "model/optimizer=muon", "trainer.max_epochs=2")
    measured = (*options, *EVERY, "callbacks.noise_scale.geometry=optimizer")
    (kept := tmp_path / "kept").mkdir()
    plain, _ = trained(tmp_path / "plain", *options)
    watched, trainer = trained(tmp_path, *measured, extra=[KeepAll(kept)])
    assert not differences(plain | {"callbacks": None}, watched | {"callbacks": None})
    assert collect_facts(trainer)["noise_scale"] > 0
    again, _ = trained(tmp_path, *measured, ckpt_path=kept / "5.ckpt")
    assert not differences(watched, again)


SIGN = ("model=mlp", "model/optimizer=sgd", "model.optimizer.momentum=0", *EVERY, "callbacks.noise_scale.geometry=sign")


def test_a_run_goes_on_with_the_gradients_that_its_optimizer_does_not_keep(tmp_path: Path) -> None:
    options = (*SIGN, "trainer.max_epochs=2")
    (kept := tmp_path / "kept").mkdir()
    whole, trainer = trained(tmp_path, *options, extra=[KeepAll(kept)])
    assert collect_facts(trainer)["noise_scale_estimates"] == trainer.global_step - 1
    again, _ = trained(tmp_path, *options, ckpt_path=kept / "5.ckpt")
    assert not differences(whole, again)


@requires("nonfinite")
def test_a_step_before_which_no_gradient_is_known_is_not_counted(tmp_path: Path) -> None:
    """The step after one that was left out."""
    options = (*SIGN, "guards.nonfinite.action=skip", "trainer.max_epochs=1")
    _, trainer = trained(tmp_path, *options, extra=[Poison(batches=(2,))])
    assert collect_facts(trainer)["noise_scale_estimates"] == trainer.global_step - 3


def test_estimates_of_another_geometry_are_left_behind(tmp_path: Path) -> None:
    _, model, trainer = prepared(tmp_path)
    scale = NoiseScale()
    scale.load_state_dict({"gradient": 1.0, "trace": 2.0, "weight": 0.5, "estimates": 3, "power": 2})
    scale.on_train_start(trainer, model)
    assert scale.facts()["noise_scale_estimates"] == 0


def test_what_has_no_matrix_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, model, trainer = prepared(tmp_path)
    with caplog.at_level(logging.WARNING, "lockstep.extras.noise_scale.noise_scale"):
        NoiseScale(geometry="spectral").on_train_start(trainer, model)  # before there is an optimizer
    assert caplog.messages == [
        "callbacks.noise_scale: no noise scale is estimated: geometry=spectral measures matrices, and the model has none"
    ]


def test_an_optimizer_whose_steps_have_no_known_geometry_has_no_noise_scale(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("model.optimizer._target_=torch.optim.RMSprop", "~model.optimizer.nesterov", "~model.optimizer.fused")
    with caplog.at_level(logging.WARNING, "lockstep.extras.noise_scale.noise_scale"):
        facts = linear.fitted(tmp_path, 64 * 3, *options, "datamodule.global_batch_size=64", geometry="optimizer").facts()
    assert caplog.messages == [
        "callbacks.noise_scale: no noise scale is estimated: the geometry of RMSprop's steps is not known; "
        "accepted is geometry=euclidean, sign or spectral"
    ]
    assert (facts["noise_scale"], facts["noise_scale_estimates"]) == (None, 0)


def test_another_geometry_is_refused(tmp_path: Path) -> None:
    cfg = composed("callbacks=noise_scale", "callbacks.noise_scale.geometry=round", run_dir=tmp_path)
    assert refusal(cfg) == "callbacks.noise_scale.geometry=round: accepted is euclidean, optimizer, sign, spectral"
