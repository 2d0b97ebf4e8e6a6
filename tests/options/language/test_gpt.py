"""A Transformer whose tokens see what they should, its loss by hand over tokens, and text by scripts/generate.py."""

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import generate
import pytest
import torch
from in_process import composed
from omegaconf import OmegaConf
from torch import Tensor

from lockstep.datamodules import DataSpec
from lockstep.language.gpt import GPT
from lockstep.language.language_model import LanguageModel
from lockstep.language.tokens import NOT_COUNTED
from lockstep.models.from_config import build_model
from lockstep.models.schedules import constant

SEPARATOR = 10


def small(context: int = 16, **options: Any) -> GPT:
    """Eleven tokens, with weights so large that each of them matters."""
    torch.manual_seed(0)
    net = GPT((context,), 11, **{"width": 16, "depth": 2, "heads": 4, "kv_heads": 2, **options}).double().eval()
    for parameter in net.parameters():
        parameter.data.mul_(10 if parameter.ndim == 2 else 1)
    return net


def tokens(*shape: int) -> Tensor:
    return torch.randint(SEPARATOR, shape, generator=torch.Generator().manual_seed(1))


def test_a_token_sees_no_later_one() -> None:
    net, row = small(), tokens(1, 16)
    changed = row.clone()
    changed[0, 9] = (row[0, 9] + 1) % SEPARATOR
    differs = (net(row) != net(changed)).any(dim=2)[0]
    assert not differs[:9].any()
    assert differs[9:].all()


def test_documents_in_one_row_are_as_if_each_were_alone() -> None:
    net, row = small(), tokens(1, 16)
    row[0, [0, 5, 9]] = SEPARATOR
    packed = net(row)
    for begin, end in ((0, 5), (5, 9), (9, 16)):
        torch.testing.assert_close(packed[:, begin:end], net(row[:, begin:end]), rtol=0, atol=1e-6)  # angles are in float32
    assert not torch.allclose(small(separator=None)(row)[:, 9:], packed[:, 9:], atol=1e-3)


class Given(torch.nn.Module):
    """A net whose outputs are given."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, tokens: Tensor) -> Tensor:
        return self.outputs


def test_a_place_without_a_target_counts_for_nothing_and_has_no_gradient() -> None:
    probabilities = [[1 / 4] * 4, [1 / 8, 1 / 8, 1 / 2, 1 / 4]]  # of one window of two places
    outputs = torch.tensor([probabilities], dtype=torch.float64).log().requires_grad_()
    parts = {"optimizer": partial(torch.optim.SGD, lr=0.1), "lr_scheduler": constant}
    model = LanguageModel(net=Given(outputs), spec=DataSpec((2,), 4), **parts)
    logged: dict[str, tuple[float, float]] = {}
    model.log = lambda name, value, batch_size, **_: logged.update({name: (float(value), float(batch_size))})
    targets = torch.tensor([[1, NOT_COUNTED]])
    loss = model.training_step((targets, targets), 0)
    assert loss.item() == pytest.approx(math.log(4) / 2)  # of a window of two, as in any other window
    assert logged["train/loss"] == (pytest.approx(math.log(4)), 1)
    loss.backward()
    assert outputs.grad is not None
    assert [bool(place.any()) for place in outputs.grad[0]] == [True, False]


NANO = ("model=gpt_nano", "model.net.width=16", "model.net.depth=2", "datamodule=text", "datamodule.context=12")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an untrained model."""
    run_dir = tmp_path_factory.mktemp("gpt")
    cfg = composed(*NANO, run_dir=run_dir)
    for name in (".hydra", "checkpoints"):
        (run_dir / name).mkdir()
    OmegaConf.save(cfg, run_dir / ".hydra" / "config.yaml")
    model = OmegaConf.to_container(cfg.model, resolve=True)
    spec = {"input_shape": [12], "num_outputs": 257, "class_names": None}
    torch.manual_seed(0)
    content = {
        "state_dict": build_model(model, DataSpec(**spec)).state_dict(),
        "hyper_parameters": {"model": model, "spec": spec},
    }
    torch.save(content, run_dir / "checkpoints" / "best.ckpt")
    return run_dir


def test_it_goes_on_from_the_prompt_as_the_seed_says(run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def said(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["generate.py", str(run_dir), *arguments])
        generate.main()
        return capsys.readouterr().out

    first = said("naïve ", "--length", "20", "--seed", "1")
    assert first.startswith("naïve ")
    assert first == said("naïve ", "--length", "20", "--seed", "1") != said("naïve ", "--length", "20", "--seed", "2")
    assert said("--length", "5", "--top-k", "1", "--seed", "1") == said("--length", "5", "--top-k", "1", "--seed", "2")
