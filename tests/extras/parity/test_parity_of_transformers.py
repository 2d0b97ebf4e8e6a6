"""Is N one for Transformers, in float64: after each step from the same weights, and after all of them."""

from pathlib import Path

import pytest
from capabilities import requires
from in_process import composed_at_once, plain
from odd import BARE
from omegaconf import DictConfig

from lockstep.extras.parity.comparison import compare
from lockstep.extras.parity.processes import Processes
from lockstep.extras.parity.sides import Sides

pytestmark = [pytest.mark.slow, requires("language", "vit", "sharding", "finetuning", "synthetic")]
language_models = pytest.importorskip("language_models")
TINY_GPT, texts = language_models.TINY, language_models.texts

# 21 images in steps of 12, and windows of which the last have few targets: the tails do not divide
STEPS = (*BARE, "trainer=cpu", "parity.steps=4", "datamodule.global_batch_size=12", "datamodule.drop_last=false")
IMAGES = ("datamodule=synthetic_images", "datamodule.shape=[1,8,8]", "datamodule.num_classes=3", "datamodule.length=21")
IMAGES += ("datamodule.val_length=11", "datamodule.test_length=4")
VIT = (*IMAGES, "model=vit", "model.net.width=16", "model.net.heads=2", "model.net.depth=2", "model.net.registers=1")
VIT += ("model/optimizer=sgd",)  # the bias of attention's keys has no gradient but rounding, of which Adam makes steps of 1e-10
MODELS = {
    "gpt": TINY_GPT,
    "gpt, AdamW": (*TINY_GPT, "model/optimizer=adamw", "model.net.separator=null", "trainer.gradient_clip_val=0.5"),
    "gpt, LoRA": (*TINY_GPT, "model/optimizer=adamw", "model/adapt=lora", "model.adapt.rank=2", "model.adapt.train=norm"),
    "vit": VIT,
    "gpt, fsdp": (*TINY_GPT, "trainer/strategy=fsdp"),
    "gpt, tensor_parallel": (*TINY_GPT, "trainer/strategy=tensor_parallel", "trainer/plan=gpt", "trainer.gradient_clip_val=0.5"),
    "vit, tensor_parallel": (*VIT, "trainer/strategy=tensor_parallel", "trainer/plan=vit"),
}
ON = [("gpt", 3), ("vit", 2), ("gpt, LoRA", 2), ("gpt, AdamW", 2)]
DIVIDED = [("gpt, fsdp", 4), ("gpt, tensor_parallel", 4), ("vit, tensor_parallel", 2)]


@pytest.mark.parametrize(("model", "devices"), [*ON, *DIVIDED])
def test_gradients_and_weights_are_those_of_one_process(model: str, devices: int, processes: Processes, tmp_path: Path) -> None:
    data = () if "vit" in model else texts(tmp_path)
    options = plain(*STEPS, *data, *MODELS[model], f"trainer.devices={devices}")

    def composed(more: list[str]) -> DictConfig:
        return composed_at_once(*options, *more, config_name="parity")

    sides = Sides.of(composed([]), composed)
    result = compare(sides, processes)
    assert result.equal, result.table()
    assert "validation metrics" in {row.quantity for row in result.rows}
    for quantity in ("loss", "gradients", "weights"):
        worst = max((one for one in result.other.differences if one.quantity == quantity), key=lambda one: one.value)
        assert worst.value < 1e-10, worst
