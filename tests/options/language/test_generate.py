"""Text from a trained language model, by scripts/generate.py."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import generate
import pytest
import torch
from in_process import composed
from omegaconf import OmegaConf

from lockstep.datamodules import DataSpec
from lockstep.models.from_config import build_model

GPT = ("model=gpt_nano", "model.net.width=16", "model.net.depth=2", "datamodule=text", "datamodule.context=12")


def written(run_dir: Path, overrides: tuple[str, ...], spec: dict[str, Any]) -> Path:
    """A run of an untrained model."""
    cfg = composed(*overrides, run_dir=run_dir)
    (run_dir / ".hydra").mkdir(parents=True)
    (run_dir / "checkpoints").mkdir()
    OmegaConf.save(cfg, run_dir / ".hydra" / "config.yaml")
    model_config = {"model": OmegaConf.to_container(cfg.model, resolve=True), "spec": {**spec, "class_names": None}}
    torch.manual_seed(0)
    state = build_model(model_config["model"], DataSpec(**model_config["spec"])).state_dict()
    torch.save({"state_dict": state, "hyper_parameters": model_config}, run_dir / "checkpoints" / "best.ckpt")
    return run_dir


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("gpt") / "run", GPT, {"input_shape": [12], "num_outputs": 257})


@pytest.fixture
def said(run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What generate.py writes."""

    def of(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["generate.py", str(run_dir), *arguments])
        generate.main()
        return capsys.readouterr().out

    return of


def test_it_goes_on_from_the_prompt_as_the_seed_says(said: Callable[..., str]) -> None:
    first = said("naïve ", "--length", "20", "--seed", "1")
    assert first.startswith("naïve ")
    assert first.endswith("\n")
    assert len(first) > len("naïve \n")
    assert first == said("naïve ", "--length", "20", "--seed", "1") != said("naïve ", "--length", "20", "--seed", "2")
    assert said("--length", "5", "--top-k", "1", "--seed", "1") == said("--length", "5", "--top-k", "1", "--seed", "2")
