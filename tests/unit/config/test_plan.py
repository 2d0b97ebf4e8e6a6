"""Devices, batch sizes and the learning rate that follow from a config, on machines with no GPU and with four."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """As if on a machine that shows so many."""
    monkeypatch.setattr("lockstep.config.plan.visible_gpus", lambda: request.param)


STARTED_BY_TORCHRUN = {"trainer__accelerator": "cpu", "trainer__devices": "auto", "trainer__num_nodes": "auto"}


def make_plan(cfg: DictConfig, started: tuple[int, int] | None = None, **changes: Any) -> Plan:
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    return Plan.from_config(cfg, started)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("gpus", "accelerator", "devices", "kind", "count", "ids"),
    [
        (0, "auto", 1, "cpu", 1, None),
        (0, "auto", "auto", "cpu", 1, None),
        (0, "mps", "auto", "mps", 1, None),
        (4, "auto", "auto", "gpu", 4, None),
        (4, "auto", -1, "gpu", 4, None),
        (4, "cuda", 2, "gpu", 2, None),
        (4, "gpu", [2, 0], "gpu", 2, (2, 0)),
        (4, "cpu", 8, "cpu", 8, None),
    ],
    indirect=["gpus"],
)
def test_devices_become_an_accelerator_and_a_number(
    accelerator: str, devices: object, kind: str, count: int, ids: tuple[int, ...] | None, shipped: DictConfig
) -> None:
    plan = make_plan(shipped, trainer__accelerator=accelerator, trainer__devices=devices)
    assert (plan.accelerator, plan.devices, plan.device_ids, plan.world_size) == (kind, count, ids, count)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("gpus", "accelerator", "devices", "message"),
    [
        (0, "gpu", 1, "trainer.accelerator=gpu: this machine shows no GPU; use cpu or auto"),
        (0, "auto", [0], "trainer.devices=[0]: this machine shows 0 GPU(s), numbered from 0"),
        (4, "cpu", [0], "trainer.devices=[0]: this machine shows 0 GPU(s), numbered from 0"),
        (4, "auto", [0, 4], "trainer.devices=[0, 4]: this machine shows 4 GPU(s), numbered from 0"),
        (4, "auto", 5, "trainer.devices=5: this machine shows 4 GPU(s); use 1 to 4, or trainer=cpu"),
        (0, "mps", 2, "trainer.devices=2: this machine shows 1 MPS(s); use 1 to 1, or trainer=cpu"),
    ],
    indirect=["gpus"],
)
def test_devices_that_are_not_there_are_refused(accelerator: str, devices: object, message: str, shipped: DictConfig) -> None:
    with pytest.raises(ConfigError) as refused:
        make_plan(shipped, trainer__accelerator=accelerator, trainer__devices=devices)
    assert str(refused.value) == message


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(("gpus", "accelerator"), [(4, "gpu"), (0, "cpu")], indirect=["gpus"])
def test_auto_is_what_has_been_started(accelerator: str, shipped: DictConfig) -> None:
    for name, value in {"accelerator": accelerator, "devices": "auto", "num_nodes": "auto"}.items():
        OmegaConf.update(shipped, f"trainer.{name}", value)
    shipped.datamodule.global_batch_size = 12
    plan = Plan.from_config(shipped, started=(2, 3))
    assert (plan.devices, plan.num_nodes, plan.world_size) == (2, 3, 6)
    assert Plan.from_config(shipped).num_nodes == 1
    shipped.trainer.devices = 4  # a number stays one
    assert Plan.from_config(shipped, started=(2, 3)).world_size == 12


def test_a_run_elsewhere_has_the_gpus_of_there(shipped: DictConfig) -> None:
    shipped.trainer.devices = 4
    assert Plan.from_config(shipped, node_gpus=4).accelerator == "gpu"
    with pytest.raises(ConfigError, match=r"trainer.devices=4: a node has 2 GPU\(s\); use 1 to 2, or trainer=cpu"):
        Plan.from_config(shipped, node_gpus=2)


@pytest.mark.parametrize(
    ("devices", "accumulate", "given", "sizes"),
    [
        *((devices, 1, {"batch_size": 64}, (64, 64 * devices)) for devices in (1, 4)),
        (4, 3, {"batch_size": 16}, (16, 192)),  # their product
        *((devices, 1, {"global_batch_size": 96}, (96 // devices, 96)) for devices in (1, 2, 4)),
        (4, 3, {"global_batch_size": 96}, (8, 96)),
    ],
)
def test_the_global_batch_is_divided_unless_that_of_a_process_is_given(
    devices: int, accumulate: int, given: dict[str, int], sizes: tuple[int, int], shipped: DictConfig
) -> None:
    counts = {"trainer__devices": devices, "trainer__accumulate_grad_batches": accumulate, "trainer__accelerator": "cpu"}
    plan = make_plan(shipped, **counts, **{f"datamodule__{name}": value for name, value in given.items()})
    assert (plan.batch_size, plan.global_batch_size, plan.accumulate_grad_batches) == (*sizes, accumulate)


def test_global_batch_size_is_shared_out_unequally_where_the_number_of_processes_is_auto(shipped: DictConfig) -> None:
    for total, nodes, batch_size in ((100, 3, 34), (96, 3, 32), (5, 3, 2), (3, 3, 1)):
        plan = make_plan(shipped, started=(1, nodes), **STARTED_BY_TORCHRUN, datamodule__global_batch_size=total)
        assert (plan.world_size, plan.batch_size, plan.global_batch_size) == (nodes, batch_size, total)
        assert f"global batch {total} ({'' if total % nodes == 0 else 'up to '}{batch_size} per process)" in str(plan)


@pytest.mark.parametrize(("total", "accumulate", "parts"), [(2, 1, 3), (101, 2, 6)])
def test_no_process_is_without_samples_and_accumulated_batches_are_alike(
    total: int, accumulate: int, parts: int, shipped: DictConfig
) -> None:
    changes = {"trainer__accumulate_grad_batches": accumulate, "datamodule__global_batch_size": total}
    with pytest.raises(ConfigError, match=f"global_batch_size={total}: .* use a multiple of {parts}, or"):
        make_plan(shipped, started=(1, 3), **STARTED_BY_TORCHRUN, **changes)


@pytest.mark.parametrize(
    ("scaling", "devices", "accumulate", "lr"),
    [
        ("none", 4, 1, 0.5),
        ("linear", 1, 1, 0.5),  # 64 / 64
        ("linear", 4, 1, 2.0),  # 0.5 * 256 / 64
        ("linear", 1, 8, 4.0),  # 0.5 * (64 * 8) / 64
        ("sqrt", 4, 1, 1.0),  # 0.5 * (256 / 64) ** 0.5
    ],
)
def test_learning_rate_scales_with_the_global_batch(
    scaling: str, devices: int, accumulate: int, lr: float, shipped: DictConfig
) -> None:
    counts = {"trainer__devices": devices, "trainer__accumulate_grad_batches": accumulate, "trainer__accelerator": "cpu"}
    rate = {"lr_scaling": scaling, "base_batch_size": 64, "model__optimizer__lr": 0.5}
    assert make_plan(shipped, **counts, **rate, datamodule__batch_size=64).lr == lr


def test_an_optimizer_without_a_learning_rate_has_none(shipped: DictConfig) -> None:
    with open_dict(shipped):
        del shipped.model.optimizer["lr"]
    plan = make_plan(shipped, trainer__accelerator="cpu", lr_scaling="linear")
    assert plan.lr is None
    assert "learning rate" not in str(plan)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("gpus", "changes", "words"),
    [
        (4, {}, "one process on one GPU; global batch 64 (64 per process), learning rate 0.002"),
        (
            4,
            {"trainer__devices": 2, "trainer__num_nodes": 2, "trainer__accumulate_grad_batches": 2},
            "4 GPU processes on 2 nodes, DDP over NCCL; global batch 64 (8 per process, 2 accumulated), learning rate 0.002",
        ),
    ],
    indirect=["gpus"],
)
def test_a_plan_in_words(changes: dict[str, Any], words: str, shipped: DictConfig) -> None:
    assert str(make_plan(shipped, **changes)) == words


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("given", [{"global_batch_size": 64}, {"batch_size": 16, "global_batch_size": None}])
def test_the_batches_of_trainer_exact_are_those_of_virtual_workers(
    devices: int, given: dict[str, Any], shipped: DictConfig
) -> None:
    """A LightningDataModule was given a process's batch for each worker: a step of one process had twice the samples."""
    shipped.trainer.strategy = {"_target_": "lockstep.exact.strategy.Exact", "workers": 4}
    sizes = {f"datamodule__{name}": value for name, value in given.items()}
    plan = make_plan(shipped, trainer__accelerator="cpu", trainer__devices=devices, **sizes)
    assert (plan.batch_size, plan.global_batch_size) == (16, 64)
    assert "global batch 64 (16 per virtual worker)" in str(plan)
