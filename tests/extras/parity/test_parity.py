"""Is N one: the comparison finds equality where it is, and where it is not the reason."""

from collections.abc import Callable

import pytest
from capabilities import requires
from in_process import composed_at_once, plain
from odd import BARE, EQUAL_BUT, UNEQUAL, odd
from omegaconf import DictConfig, open_dict

from lockstep.errors import ConfigError
from lockstep.extras.parity.comparison import TooFewSteps
from lockstep.extras.parity.processes import Processes, SideFailed
from lockstep.extras.parity.verdict import parity

pytestmark = [pytest.mark.slow, requires("synthetic")]

DATA = (
    "datamodule=synthetic_images",
    "datamodule.shape=[1,4,4]",
    "datamodule.num_classes=3",
    "datamodule.length=21",
    "datamodule.val_length=11",
    "datamodule.test_length=4",
    "datamodule.batch_size=4",
)
TINY = (*DATA, *BARE, "trainer=cpu", "trainer.devices=2", "parity.steps=4")
CNN = ("model=cnn", "model.net.width=4")
TAIL = ("trainer.accumulate_grad_batches=2", "datamodule.batch_size=2", "datamodule.drop_last=false")  # of one sample


def composed(*overrides: str) -> Callable[[list[str]], DictConfig]:
    return lambda more: composed_at_once(*plain(*overrides), *more, config_name="parity")


@pytest.fixture
def compared(processes: Processes) -> Callable[..., tuple[bool, str]]:
    """Are they equal, and what was said."""

    def of(*overrides: str) -> tuple[bool, str]:
        said: list[str] = []
        return parity(composed(*overrides), said.append, processes=processes), "\n".join(said)

    return of


Compared = Callable[..., tuple[bool, str]]
NUMBERS_AS_KEYS = (
    "+callbacks.accumulation={_target_: lightning.pytorch.callbacks.GradientAccumulationScheduler, scheduling: {0: 1}}"
)
EQUAL = {
    "dropout, augmentation, a curriculum, logged at every step": (
        *("model._target_=planted.LogsEveryStep", "model.net.dropout=0.5", "datamodule.drop_last=false"),
        *("+datamodule.augment.flip=true", "+datamodule.augment.crop=1", "datamodule.standardize=true"),
        *("datamodule/curriculum=linear", "datamodule.curriculum.epochs=1.5", NUMBERS_AS_KEYS),
    ),
    # 21 samples in steps of 8: the last takes 5, in two batches of 2 ranks and then in one of a single rank
    "a tail, accumulated": (
        *("trainer.accumulate_grad_batches=2", "datamodule.batch_size=2", "datamodule.drop_last=false"),
        "model.net._target_=planted.Peculiar",
    ),
    "three, float32, SGD": ("trainer.devices=3", "datamodule.global_batch_size=6", "model/optimizer=sgd", "parity.precision=run"),
    "BatchNorm": (*CNN, "datamodule.drop_last=false"),
    "BatchNorm, accumulated": (*CNN, "trainer.accumulate_grad_batches=2"),
    "plain DDP": ("parity.against=ddp",),
}
DIVIDED = {
    "sharded": (*CNN, "trainer/strategy=fsdp", "trainer.gradient_clip_val=0.1", "trainer.accumulate_grad_batches=2"),
    "sharded, float32, a tail that leaves a process without a sample": (
        *("trainer/strategy=fsdp", "model/optimizer=sgd", "parity.precision=run", *TAIL),
    ),
    "layers divided": ("trainer/strategy=tensor_parallel", "trainer/plan=mlp", "trainer.gradient_clip_val=0.1", *TAIL),
}


@pytest.mark.parametrize("what", [*EQUAL, *DIVIDED])
def test_equal(compared: Compared, what: str) -> None:
    equal, said = compared(*TINY, *(EQUAL | DIVIDED)[what])
    assert equal, said
    assert said.splitlines()[-1].startswith("Equal up to step 3, in epoch ")
    assert "NOT EQUAL" not in said


def test_accumulated_batches_without_a_global_size(processes: Processes) -> None:
    """As of a datamodule of the user's own."""

    def without(more: list[str]) -> DictConfig:
        cfg = composed(*TINY, "trainer.accumulate_grad_batches=2", "datamodule.batch_size=2")(more)
        with open_dict(cfg):
            del cfg.datamodule.global_batch_size
        return cfg

    said: list[str] = []
    assert parity(without, said.append, processes=processes), said
    assert "one process on the CPU; global batch 8 (8 per process)" in said[0]


def test_another_precision_is_not_equal_and_no_cause_is_made_up(compared: Compared) -> None:
    equal, said = compared(*TINY, "trainer.precision=bf16-true", "parity.against='trainer.precision=64-true'")
    assert not equal
    assert "bf16-true\nagainst" in said
    assert "Why: none of the causes known here" in said


def test_a_model_that_fails_on_both_sides_is_a_failure_with_its_traceback(compared: Compared) -> None:
    with pytest.raises(SideFailed, match="ValueError: planted") as failure:
        compared(*TINY, "model.net._target_=planted.Fails")
    assert "in forward" in failure.value.traceback


def test_a_loss_that_is_not_finite_is_nothing_to_compare(compared: Compared) -> None:
    with pytest.raises(SideFailed, match="the loss is not finite"):
        compared(*TINY, "model/optimizer=sgd", "model.optimizer.lr=1e300")


def test_epochs_of_other_lengths_are_not_equal(compared: Compared) -> None:
    equal, said = compared(*TINY, "datamodule._target_=planted.AnotherTail")
    assert not equal
    assert "first in step 2: steps per epoch" in said
    assert "steps per epoch" in said.split("Not equal", maxsplit=1)[0]


def test_a_tail_that_is_not_reached_is_said_to_be_so(compared: Compared) -> None:
    equal, said = compared(*TINY, "datamodule.drop_last=false", "parity.steps=2")
    assert equal
    assert "Not compared: what comes later, since these 2 steps end before the first epoch, of 3, does." in said


@requires("parity_causes")
def test_a_cause_that_can_not_be_switched_off_is_not_named(compared: Compared) -> None:
    """Seven samples are less than a batch of eight: none is left without the tail. What the loss sees is found all the same."""
    equal, said = compared(*TINY, *PLANTED["a loss that averages over an uneven tail"], "datamodule.length=7")
    assert not equal
    assert "uneven tail" not in said
    assert "Why: a net or a loss that sees the batch of its process alone." in said


def test_what_the_ranks_refuse_is_refused(compared: Compared) -> None:
    """By whichever side ends first, in the words of its config."""
    keys = r"(global_batch_size=200: is|batch_size=100: the global batch of 200 is)"
    with pytest.raises(ConfigError, match=rf"^datamodule\.{keys} larger than the training split"):
        compared(*TINY, "datamodule.batch_size=100")


def test_a_unit_at_the_boundary_of_its_relu_is_equal_in_float32(compared: Compared) -> None:
    equal, said = compared(*TINY, "model.net._target_=planted.AtBoundary", "parity.precision=32-true", "model.optimizer.lr=0.0")
    assert equal, said
    assert "equal but at ReLU boundaries" in said
    assert "NOT EQUAL" not in said


PLANTED = {
    "BatchNorm without synchronisation": (*CNN, "trainer.sync_batchnorm=false"),
    "a loss that averages over an uneven tail": ("model._target_=planted.MeanLoss", "datamodule.drop_last=false"),
    "dropout drawn per rank": ("model.net._target_=planted.PlainDropout",),
    "augmentation drawn per rank": ("datamodule._target_=planted.FlipsPerRank", "+datamodule.augment.flip=true"),
    "unused parameters": ("model.net._target_=planted.Unused",),
    "a metric that averages means": ("model._target_=planted.MeanOfMeans",),
    "a learning rate scaled by the world size": ("model._target_=planted.ScaledRate",),
    "non-deterministic kernels": ("model.net._target_=planted.Nondeterministic",),
}


@requires("parity_causes")
@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_and_no_other(compared: Compared, cause: str) -> None:
    equal, said = compared(*TINY, *PLANTED[cause])
    assert not equal, said
    named = [line for line in said.splitlines() if line.startswith("Why:")]
    assert named == [f"Why: {cause}. With it switched off both are equal."]


@requires("parity_causes")
def test_two_causes_at_once_are_both_named(compared: Compared) -> None:
    _, said = compared(*TINY, *PLANTED["dropout drawn per rank"], *PLANTED["augmentation drawn per rank"])
    named = [line.partition(".")[0] for line in said.splitlines() if line.startswith("Why:")]
    assert named == ["Why: dropout drawn per rank", "Why: augmentation drawn per rank"]


@pytest.mark.parametrize("what", EQUAL_BUT)
def test_what_was_not_compared_is_said_beside_equal(compared: Compared, what: str) -> None:
    overrides, note = EQUAL_BUT[what]
    equal, said = compared(*TINY, *overrides)
    assert equal, said
    assert note in said


@requires("parity_causes")
@pytest.mark.parametrize("what", UNEQUAL)
def test_a_difference_that_hides_is_found_and_its_cause_named_or_not_known(compared: Compared, what: str) -> None:
    overrides, first, cause = UNEQUAL[what]
    equal, said = compared(*TINY, *overrides)
    assert not equal
    assert f"Not equal, first {first}" in said
    named = [line for line in said.splitlines() if line.startswith("Why:")]
    assert len(named) == 1, named
    assert cause in named[0]
    assert ("Not as on one process: val/alone is logged by 1 of 2 processes alone." in said) == (what == "alone")


@requires("parity_causes")
def test_a_defect_behind_another_is_found(compared: Compared) -> None:
    _, said = compared(*TINY, *odd("unequal.RunningMeanAndSchedule", steps=4))
    first, second = [line for line in said.splitlines() if line.startswith("Why:")]
    assert first.startswith(
        "Why: running statistics of each process's own samples. With it switched off they still differ, first"
    )
    assert "in step 2: learning rate" in first
    assert second == "Why: a schedule that depends on the number of processes. With it switched off both are equal."


@pytest.mark.parametrize(("module", "done"), [("equal.Stops", 1), ("equal.NeverBegins", 0)])
def test_fewer_steps_than_asked_for_are_no_verdict(compared: Compared, module: str, done: int) -> None:
    with pytest.raises(TooFewSteps, match=f"has made {done} of 2 steps, so there is no verdict"):
        compared(*TINY, *odd(module))


def test_a_model_bound_to_its_precision_is_told_what_to_do(compared: Compared) -> None:
    with pytest.raises(SideFailed, match=r"^reference: RuntimeError: .* \(in 64-true; try parity.precision=run\)$"):
        compared(*TINY, *odd("equal.Float32Only"))


def test_a_process_that_is_killed_is_said_to_be_though_its_data_workers_live_on(compared: Compared) -> None:
    with pytest.raises(SideFailed) as failure:
        compared(*TINY, *odd("unequal.Killed", data="ReadByWorkers"))
    assert failure.value.side == "other"
    assert failure.value.traceback == "rank 1 was killed by SIGKILL"


def test_of_processes_that_wait_for_each_other_the_stacks_are_shown(
    processes: Processes, compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "patience", 4)
    with pytest.raises(SideFailed, match="no progress for 4 s, in training batch 1 of epoch 0") as failure:
        compared(*TINY, *odd("unequal.Branches"))
    assert "planted_unequal.py" in failure.value.traceback
