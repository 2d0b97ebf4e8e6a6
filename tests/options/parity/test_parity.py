"""The comparison finds equality where it is, and where it is not the reason."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, python
from in_process import composed_at_once, plain
from language_models import TINY as TINY_GPT
from language_models import texts
from omegaconf import DictConfig, OmegaConf
from ranks import in_ranks

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError, NamedFailure
from lockstep.parity.trainings import OTHER, SideFailed, Sides, train
from lockstep.parity.verdict import parity

pytestmark = pytest.mark.slow

BARE = ("~callbacks", *(f"++guards.{name}=null" for name in ("preemption", "nonfinite")))
DATA = ("datamodule=synthetic_images", "datamodule.shape=[1,4,4]", "datamodule.num_classes=3", "datamodule.length=21")
DATA += ("datamodule.val_length=11", "datamodule.test_length=4", "datamodule.batch_size=4")
TINY = (*DATA, *BARE, "trainer=cpu", "trainer.devices=2", "parity.steps=4")
CNN = ("model=cnn", "model.net.width=4")
ACCUMULATED = "trainer.accumulate_grad_batches=2"
TAIL = (ACCUMULATED, "datamodule.batch_size=2", "datamodule.drop_last=false")  # of one sample
NUMBERS_AS_KEYS = (
    "+callbacks.accumulation={_target_: lightning.pytorch.callbacks.GradientAccumulationScheduler, scheduling: {0: 1}}"
)


def train_in_ranks(cfg: DictConfig, folder: Path) -> None:
    """Train in processes that are forked, and not by train.py, which imports everything anew."""
    side = partial(train_side, content=OmegaConf.to_yaml(cfg), folder=folder)
    try:
        in_ranks(Plan.from_config(cfg).world_size, side, folder)
    except AssertionError as failure:
        *_, last = (line for line in str(failure).splitlines() if line.startswith(("lockstep.", "ValueError", "RuntimeError")))
        if ".errors." in last:
            raise ConfigError(last.partition(": ")[2]) from None
        raise SideFailed(folder.name, last, str(failure)) from None


def train_side(rank: int, world_size: int, content: str, folder: Path) -> None:
    cfg: Any = OmegaConf.create(content)
    cfg.run_dir = str(folder)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    trainer.fit(model, datamodule)
    if cfg.test:
        trainer.test(model, datamodule, verbose=False)


def compared(*overrides: str) -> tuple[bool, str]:
    """Return whether they are equal, and what was said."""
    said: list[str] = []
    cfg = composed_at_once(*plain(*overrides), config_name="parity")
    return parity(cfg, said.append, train_in_ranks), "\n".join(said)


def net(defect: str) -> tuple[str, ...]:
    return ("model.net._target_=planted.Net", f"+model.net.defect={defect}")


EQUAL = {
    "dropout, augmentation, a curriculum": (
        *("model.net.dropout=0.5", "datamodule.drop_last=false"),
        *("+datamodule.augment.flip=true", "+datamodule.augment.crop=1", "datamodule.standardize=true"),
        *("datamodule/curriculum=linear", "datamodule.curriculum.epochs=1.5", NUMBERS_AS_KEYS),
    ),
    # 21 samples in steps of 8: the last takes 5, in two batches of 2 ranks and then in one of a single rank
    "a tail, accumulated": ("model.net.dropout=0.3", *TAIL),
    "three, float32, SGD": ("trainer.devices=3", "datamodule.batch_size=2", "model/optimizer=sgd", "parity.precision=run"),
    "BatchNorm": (*CNN, "datamodule.drop_last=false"),
    "BatchNorm, accumulated": (*CNN, ACCUMULATED),
    "bits": ("trainer.exact=2",),
}
DIVIDED = {
    "sharded": (*CNN, "trainer/strategy=fsdp", "trainer.gradient_clip_val=0.1", ACCUMULATED),
    "sharded, float32, a tail that leaves a process without a sample": (
        *("trainer/strategy=fsdp", "model/optimizer=sgd", "parity.precision=run", *TAIL),
    ),
    "layers divided": ("trainer/strategy=tensor_parallel", "trainer/plan=mlp", "trainer.gradient_clip_val=0.1", *TAIL),
}


@pytest.mark.parametrize("what", [*EQUAL, *DIVIDED])
def test_equal(what: str) -> None:
    equal, said = compared(*TINY, *(EQUAL | DIVIDED)[what])
    assert equal, said
    assert said.splitlines()[-1].startswith("Equal up to step 4, in epoch ")


def test_epochs_of_other_lengths_are_not_equal() -> None:
    equal, said = compared(*TINY, "datamodule._target_=planted.AnotherTail")
    assert not equal
    assert "first in step 3: steps per epoch" in said


RATE = "a learning rate that depends on the number of processes"
UNEVEN = "batches of unequal size in evaluation"
PLANTED = {
    "BatchNorm without synchronisation": (*CNN, "trainer.sync_batchnorm=false"),
    "noise drawn per rank": (*net("dropout"),),
    UNEVEN: ("model._target_=planted.MeanOfMeans",),
    RATE: ("model._target_=planted.ScaledRate",),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_and_no_other(cause: str) -> None:
    equal, said = compared(*TINY, *PLANTED[cause])
    assert not equal, said
    named = [line for line in said.splitlines() if line.startswith("Why:")]
    assert named == [f"Why: {cause}. Without this cause both are equal."]


def odd(defect: str, *overrides: str, model: str = "Plain", steps: int = 2) -> tuple[str, ...]:
    targets = (f"model._target_=planted.{model}", "datamodule._target_=planted.Rows")
    return (*targets, f"+model.defect='{defect}'", f"parity.steps={steps}", *overrides)


SWA = ("+callbacks.swa._target_=lightning.pytorch.callbacks.StochasticWeightAveraging", "+callbacks.swa.swa_lrs=0.01")
WITHOUT_SIZE = ("~datamodule.batch_size", "~datamodule.global_batch_size")
EQUAL_BUT = {  # with what is said beside it
    "a bias before a norm": (odd("", model="BiasBeforeNorm"), "no gradient in any step (layer.0.bias, layer.0.weight)"),
    "averaged weights": (odd("", *SWA), ""),
    "nothing logged": (odd("logs nothing"), "not run or not logged"),
    "loaders that alone know their size": (odd("", *WITHOUT_SIZE), "batches as the loaders"),
    "accumulated batches without a global size, as of data of the user's own": (
        (ACCUMULATED, "datamodule.batch_size=2", "~datamodule.global_batch_size"),
        "one process on the CPU; global batch 8 (4 per process, 2 accumulated)",
    ),
}


@pytest.mark.parametrize("what", EQUAL_BUT)
def test_what_was_not_compared_is_said_beside_equal(what: str) -> None:
    overrides, note = EQUAL_BUT[what]
    equal, said = compared(*TINY, *overrides)
    assert equal, said
    assert note in said


ALONE = "a net, a loss or a metric that sees the batch of its process alone"
NOISE, SUM, UNKNOWN = "noise drawn per rank", "a loss that is a sum over the batch", "none of the causes known here"
UNEQUAL = {  # what differs first, and why
    "alone": (odd("logged alone"), "in the validation after step 2: validation metrics of val/alone", UNKNOWN),
    "a sum": (odd("a sum", steps=1), "in step 1: gradients", SUM),
    "in gradients": (odd("noise in gradients", steps=1), "after step 1: weights of layer.bias of process 1", NOISE),
    "bits": (("trainer.exact=2", "model._target_=planted.UsesRank"), "in step 1: gradients", UNKNOWN),
}


@pytest.mark.parametrize("what", UNEQUAL)
def test_a_difference_that_hides_is_found_and_its_cause_named_or_not_known(what: str) -> None:
    overrides, first, cause = UNEQUAL[what]
    equal, said = compared(*TINY, *overrides)
    assert not equal
    assert f"Not equal, first {first}" in said
    (named,) = [line for line in said.splitlines() if line.startswith("Why:")]
    assert named.startswith(f"Why: {cause}")
    assert ("Differs from one process: val/alone is logged by 1 of 2 processes alone." in said) == (what == "alone")


def test_a_defect_behind_another_is_found() -> None:
    """Buffers that each process fills alone, and a schedule."""
    _, said = compared(*TINY, *odd("schedule", steps=4))
    assert "Not equal, first in step 2: buffers of centre" in said
    first, second = [line for line in said.splitlines() if line.startswith("Why:")]
    assert first.startswith(f"Why: {ALONE}. Without this cause they still differ, first in step 3: learning rate")
    assert second == f"Why: {RATE}. Without this cause both are equal."


TOO_LARGE = r"^datamodule\.(global_batch_size=200|batch_size=100): a step has 200 samples, "
WITHOUT = {  # by whichever side ends first, in the words of its config
    "fails": ((*net("fails"),), SideFailed, "^reference: ValueError: planted"),
    "diverges": (("model/optimizer=sgd", "model.optimizer.lr=1e300"), NamedFailure, "the weights are not finite"),
    "ends": (odd("ends"), NamedFailure, "has made 1 of 2 steps, so there is no verdict"),
    "is refused": (("datamodule.batch_size=100",), ConfigError, TOO_LARGE),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_a_training_without_a_verdict_says_why(what: str) -> None:
    overrides, kind, said = WITHOUT[what]
    with pytest.raises(kind, match=said) as failure:
        compared(*TINY, *overrides)
    assert kind is not SideFailed or "in forward" in failure.value.traceback


SIZES = ("datamodule.shape=[1,4,4]", "datamodule.length=16", "datamodule.val_length=8", "datamodule.global_batch_size=16")
SMALL = ("trainer=cpu", "trainer.devices=2", "parity.steps=1", "datamodule=synthetic_images", *SIZES)


def test_not_equal_is_3_with_the_reason(tmp_path: Path) -> None:
    unsynchronised = ("model=cnn", "model.net.width=4", "trainer.sync_batchnorm=false")
    done = python(ROOT / "scripts" / "parity.py", *SMALL, *unsynchronised, cwd=tmp_path, code=3)
    assert done.stdout.startswith("2 CPU processes, DDP over gloo; global batch 16 (8 per process)")
    again = "Training both again to test one possible cause: BatchNorm without synchronisation ...\n"
    assert done.stderr == f"Training both, one after the other ...\n{again}"
    assert "Not equal, first in step 1: gradients of net." in done.stdout
    assert "Why: BatchNorm without synchronisation." in done.stdout
    assert "set trainer.sync_batchnorm=true" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_compared_is_one_line_and_code_2(tmp_path: Path) -> None:
    for arguments, line in {
        (): "trainer.devices=1: one process is the reference; use 2 or more",
        ("parity.steps=0",): "parity.steps=0: trains nothing; use at least 1",
        ("parity.stps=1",): "parity.stps=1: unknown key; did you mean parity.steps?",
    }.items():
        done = python(ROOT / "scripts" / "parity.py", "trainer.accelerator=cpu", *arguments, cwd=tmp_path, code=2)
        assert done.stderr.startswith(line)
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_stacks_of_processes_that_wait_for_each_other_are_shown(tmp_path: Path) -> None:
    targets = ("model._target_=planted.Plain", "+model.defect=branches", "datamodule._target_=planted.Rows")
    few = ("datamodule.global_batch_size=4", "parity.steps=2", "parity.timeout=4")
    cfg = composed_at_once(*plain(*SMALL, *few, *targets), config_name="parity")
    (folder := tmp_path / OTHER).mkdir()
    with pytest.raises(SideFailed, match="no progress for 4 s, in training") as failure:
        train(Sides.of(cfg).config(OTHER, folder), folder)
    assert "planted.py" in failure.value.traceback


# 21 images in steps of 12, and windows of which the last have few targets: the tails do not divide
STEPS = (*BARE, "trainer=cpu", "parity.steps=4", "datamodule.global_batch_size=12", "datamodule.drop_last=false")
IMAGES = ("datamodule=synthetic_images", "datamodule.shape=[1,8,8]", "datamodule.num_classes=3", "datamodule.length=21")
IMAGES += ("datamodule.val_length=11", "datamodule.test_length=4")
VIT = (*IMAGES, "model=vit", "model.net.width=16", "model.net.heads=2", "model.net.depth=2")
MODELS = {
    "gpt": TINY_GPT,  # by Muon
    "gpt, LoRA": (*TINY_GPT, "model/optimizer=adamw", "model/adapt=lora", "model.adapt.rank=2", "model.adapt.train=norm"),
    "vit": VIT,
    "vit, tensor_parallel": (*VIT, "trainer/strategy=tensor_parallel", "trainer/plan=vit"),
    "gpt, fsdp": (*TINY_GPT, "trainer/strategy=fsdp"),
    "gpt, tensor_parallel": (*TINY_GPT, "trainer/strategy=tensor_parallel", "trainer/plan=gpt", "trainer.gradient_clip_val=0.5"),
}


@pytest.mark.parametrize(
    ("model", "devices"),
    [("gpt", 3), ("vit", 2), ("gpt, LoRA", 2), ("gpt, fsdp", 4), ("gpt, tensor_parallel", 4), ("vit, tensor_parallel", 2)],
)
def test_gradients_and_weights_are_those_of_one_process(model: str, devices: int, tmp_path: Path) -> None:
    data = () if "vit" in model else texts(tmp_path)
    equal, said = compared(*STEPS, *data, *MODELS[model], f"trainer.devices={devices}")
    assert equal, said
