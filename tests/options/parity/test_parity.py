"""The comparison finds equality where it is, and where it is not the reason."""

import pytest
from in_process import composed_at_once, plain
from omegaconf import open_dict
from sides_in_ranks import BARE, compared, train_in_ranks

from lockstep.errors import ConfigError, NamedFailure
from lockstep.parity.trainings import SideFailed
from lockstep.parity.verdict import parity

pytestmark = pytest.mark.slow

DATA = ("datamodule=synthetic_images", "datamodule.shape=[1,4,4]", "datamodule.num_classes=3", "datamodule.length=21")
DATA += ("datamodule.val_length=11", "datamodule.test_length=4", "datamodule.batch_size=4")
TINY = (*DATA, *BARE, "trainer=cpu", "trainer.devices=2", "parity.steps=4")
CNN = ("model=cnn", "model.net.width=4")
ACCUMULATED = "trainer.accumulate_grad_batches=2"
TAIL = (ACCUMULATED, "datamodule.batch_size=2", "datamodule.drop_last=false")  # of one sample
NUMBERS_AS_KEYS = (
    "+callbacks.accumulation={_target_: lightning.pytorch.callbacks.GradientAccumulationScheduler, scheduling: {0: 1}}"
)


def net(defect: str) -> tuple[str, ...]:
    return ("model.net._target_=planted.Net", f"+model.net.defect={defect}")


EQUAL = {
    "dropout, augmentation, a curriculum, logged at every step": (
        *("model._target_=planted.LogsEveryStep", "model.net.dropout=0.5", "datamodule.drop_last=false"),
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


def test_accumulated_batches_without_a_global_size() -> None:
    """As of a datamodule of the user's own."""
    cfg = composed_at_once(*plain(*TINY, ACCUMULATED, "datamodule.batch_size=2"), config_name="parity")
    with open_dict(cfg):
        del cfg.datamodule.global_batch_size
    said: list[str] = []
    assert parity(cfg, said.append, train_in_ranks), said
    assert "one process on the CPU; global batch 8 (4 per process, 2 accumulated)" in said[0]


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
    assert named == [f"Why: {cause}. With it switched off both are equal."]


def odd(defect: str, *overrides: str, model: str = "Plain", data: str = "Rows", steps: int = 2) -> tuple[str, ...]:
    targets = (f"model._target_=planted_plain.{model}", f"datamodule._target_=planted_plain.{data}")
    return (*targets, f"+model.defect='{defect}'", f"parity.steps={steps}", *overrides)


TOKENS = {"model": "Tokens", "data": "Sentences"}
SWA = ("+callbacks.swa._target_=lightning.pytorch.callbacks.StochasticWeightAveraging", "+callbacks.swa.swa_lrs=0.01")
EQUAL_BUT = {  # with what is said beside it
    "a frozen layer, a bias before a norm": (
        odd("", model="BiasBeforeNorm"),
        "no gradient in any step (layer.0.bias, layer.0.weight)",
    ),
    "sparse, with a logger, padded, in dictionaries": (odd("", "test=false", **TOKENS), "test, since it logged no"),
    "bound to float32": (odd("float32 alone", "parity.precision=run"), ""),
    "averaged weights": (odd("", *SWA), ""),
    "packed samples, a tail, nothing logged": (odd("", model="LogsNothing", data="Ragged", steps=3), "since it logged nothing"),
    "loaders that alone know their size": (
        odd("", "~datamodule.batch_size", "~datamodule.global_batch_size"),
        "batches as the loaders",
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
    "after the validation": (odd("threshold", steps=1), "in step 1: buffers of centre", ALONE),
    "alone": (odd("logged alone"), "in the validation after step 2: validation metrics of val/alone", UNKNOWN),
    "a maximum": (odd("a maximum"), "in the validation after step 2: validation metrics of val/largest", ALONE),
    "a sum": (odd("a sum", steps=1), "in step 1: gradients", SUM),
    "tokens": (odd("a mean", "test=false", **TOKENS), "in step 1: gradients", ALONE),
    "negatives": (odd("in-batch negatives"), "in step 1: gradients", ALONE),
    "Dice": (odd("", model="Overlap"), "in step 1: gradients", ALONE),
    "padding": (odd("", data="PaddedValidation"), "in the validation after step 2: validation samples", UNEVEN),
    "noise": (odd("noise", steps=1), "in step 1: gradients", NOISE),
    "in gradients": (odd("noise in gradients", steps=1), "after step 1: weights of layer.bias of process 1", NOISE),
    "bits": (("trainer.exact=2", "model._target_=exact_modules.UsesRank"), "in step 1: gradients", UNKNOWN),
}


@pytest.mark.parametrize("what", UNEQUAL)
def test_a_difference_that_hides_is_found_and_its_cause_named_or_not_known(what: str) -> None:
    overrides, first, cause = UNEQUAL[what]
    equal, said = compared(*TINY, *overrides)
    assert not equal
    assert f"Not equal, first {first}" in said
    named = [line for line in said.splitlines() if line.startswith("Why:")]
    assert len(named) == 1, named
    assert named[0].startswith(f"Why: {cause}")
    assert ("Not as on one process: val/alone is logged by 1 of 2 processes alone." in said) == (what == "alone")


def test_a_defect_behind_another_is_found() -> None:
    _, said = compared(*TINY, *odd("schedule", steps=4))
    first, second = [line for line in said.splitlines() if line.startswith("Why:")]
    assert first.startswith(f"Why: {ALONE}. With it switched off they still differ, first in step 3: learning rate")
    assert second == f"Why: {RATE}. With it switched off both are equal."


TOO_LARGE = r"^datamodule\.(global_batch_size=200|batch_size=100): a step has 200 samples, "
WITHOUT = {  # by whichever side ends first, in the words of its config
    "fails": ((*net("fails"),), SideFailed, "^reference: ValueError: planted"),
    "diverges": (("model/optimizer=sgd", "model.optimizer.lr=1e300"), NamedFailure, "the weights are not finite"),
    "ends": (odd("ends"), NamedFailure, "has made 1 of 2 steps, so there is no verdict"),
    "is refused": (("datamodule.batch_size=100",), ConfigError, TOO_LARGE),
    "is bound": (odd("float32 alone"), SideFailed, "^reference: RuntimeError: "),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_a_training_without_a_verdict_says_why(what: str) -> None:
    overrides, kind, said = WITHOUT[what]
    with pytest.raises(kind, match=said) as failure:
        compared(*TINY, *overrides)
    assert kind is not SideFailed or "in forward" in failure.value.traceback
