"""Two processes give the result of one for Transformers, in float64."""

from pathlib import Path

import pytest
from sides_in_ranks import BARE, compared

pytestmark = pytest.mark.slow
language_models = pytest.importorskip("language_models")
TINY_GPT, texts = language_models.TINY, language_models.texts

# 21 images in steps of 12, and windows of which the last have few targets: the tails do not divide
STEPS = (*BARE, "trainer=cpu", "parity.steps=4", "datamodule.global_batch_size=12", "datamodule.drop_last=false")
IMAGES = ("datamodule=synthetic_images", "datamodule.shape=[1,8,8]", "datamodule.num_classes=3", "datamodule.length=21")
IMAGES += ("datamodule.val_length=11", "datamodule.test_length=4")
VIT = (*IMAGES, "model=vit", "model.net.width=16", "model.net.heads=2", "model.net.depth=2", "model.net.registers=1")
MODELS = {
    "gpt": TINY_GPT,  # by Muon
    "gpt, LoRA": (*TINY_GPT, "model/optimizer=adamw", "model/adapt=lora", "model.adapt.rank=2", "model.adapt.train=norm"),
    "vit": VIT,
    "vit, tensor_parallel": (*VIT, "trainer/strategy=tensor_parallel", "trainer/plan=vit"),
    "gpt, fsdp": (*TINY_GPT, "trainer/strategy=fsdp"),
    "gpt, tensor_parallel": (*TINY_GPT, "trainer/strategy=tensor_parallel", "trainer/plan=gpt", "trainer.gradient_clip_val=0.5"),
}
ON = [("gpt", 3), ("vit", 2), ("gpt, LoRA", 2)]
DIVIDED = [("gpt, fsdp", 4), ("gpt, tensor_parallel", 4), ("vit, tensor_parallel", 2)]


@pytest.mark.parametrize(("model", "devices"), [*ON, *DIVIDED])
def test_gradients_and_weights_are_those_of_one_process(model: str, devices: int, tmp_path: Path) -> None:
    data = () if "vit" in model else texts(tmp_path)
    equal, said = compared(*STEPS, *data, *MODELS[model], f"trainer.devices={devices}")
    assert equal, said
