"""Checkpoints of stages of which each process writes its layers: the same content, at any number of stages, and no whole."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bitwise import differences
from capabilities import requires
from export import export
from in_process import become_rank, last, trained
from ranks import in_ranks
from safetensors.torch import load_file
from test_pipeline import GPT, PIPELINE, STOPPED_AT, Spoilt, assert_equal, stopped
from test_sharded_checkpoints import LAST, NOWHERE, SHARDED

from lockstep.checkpointing import read_checkpoint

pytestmark = [pytest.mark.slow, requires("language")]
language_models = pytest.importorskip("language_models")
BEHIND = "trainer.checkpoint_io.async=true"


def check_two(rank: int, world_size: int, folder: Path, gpt: tuple[str, ...]) -> dict[str, Any]:
    become_rank(rank, world_size)
    split = (*gpt, *PIPELINE, "trainer.devices=2")
    whole, _ = trained(folder / "one file", *split, extra=[Spoilt()])
    trained(folder / "parts", *split, SHARDED, extra=[Spoilt()])
    trained(folder / "background", *split, SHARDED, BEHIND, extra=[Spoilt()])
    number = stopped(folder / "stopped", *split, SHARDED, BEHIND, extra=[Spoilt()])
    dist.barrier()
    left = folder / "stopped" / LAST
    resumed, tester = trained(folder / "again", *split, SHARDED, extra=[Spoilt()], ckpt_path=left)
    model: Any = tester.lightning_module
    best = folder / "parts" / "checkpoints" / "best.ckpt"
    return {
        "number": number,
        "resumed": differences(whole | NOWHERE, resumed | NOWHERE),
        "tested": tester.test(model, tester.datamodule, ckpt_path=str(best), verbose=False),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def gpt(folder: Path) -> tuple[str, ...]:
    return (*GPT, *language_models.texts(folder))


@pytest.fixture(scope="module")
def two(folder: Path, gpt: tuple[str, ...]) -> list[dict[str, Any]]:
    return in_ranks(2, partial(check_two, folder=folder, gpt=gpt), folder)


def parts(run: Path) -> list[dict[str, int]]:
    """The names of the tensors in the parts of a run's last checkpoint, with their bytes."""
    files = sorted(torch.load(run / LAST, weights_only=True)["tensor_files"]["files"])
    contents = [torch.load(run / "checkpoints" / file, weights_only=True)["tensors"] for file in files]
    return [{name.partition("@")[0]: tensor.nbytes for name, tensor in content.items()} for content in contents]


@pytest.mark.usefixtures("two")
def test_they_hold_what_a_checkpoint_in_one_file_does(folder: Path) -> None:
    for name in ("last.ckpt", "previous.ckpt", "best.ckpt"):
        one, *others = (read_checkpoint("it", folder / run / "checkpoints" / name) for run in ("one file", "parts", "background"))
        for other in others:
            assert differences(other | NOWHERE, one | NOWHERE) == []


@pytest.mark.usefixtures("two")
def test_each_stage_writes_its_own_layers(folder: Path) -> None:
    """Weights, averages and moments: all but step counts and the like, which are small."""
    first, second = parts(folder / "parts")
    assert not first.keys() & second.keys()
    layers = [{name.split("/")[1].split(".")[2] for name in part if "/net.layers." in name} for part in (first, second)]
    assert layers == [{"0", "1"}, {"2", "3"}]
    sizes = [sum(part.values()) for part in (first, second)]
    assert max(sizes) < 0.6 * sum(sizes)  # the embedding, which is the head too, is in one of them
    index = torch.load(folder / "parts" / LAST, weights_only=True)
    states = index["optimizer_states"][0]["state"]
    assert [*states] == sorted(states)
    large = [*index["state_dict"].values(), *index["current_model_state"].values()]
    large += [value for state in states.values() for value in state.values() if value.ndim]
    assert sum(value.nbytes for value in large if value.is_meta) == sum(sizes)


def test_a_preempted_run_goes_on_to_the_bit(two: list[dict[str, Any]]) -> None:
    assert [(rank["number"], rank["resumed"]) for rank in two] == [(signal.SIGTERM, [])] * 2
    assert two[0]["tested"] == two[1]["tested"]
    assert two[0]["tested"][0]["test/loss"] > 0


@pytest.mark.usefixtures("two")
def test_one_process_goes_on_with_it_and_it_is_exported(folder: Path, gpt: tuple[str, ...], tmp_path: Path) -> None:
    one, _ = trained(tmp_path / "one", *gpt, extra=[Spoilt()], ckpt_path=folder / "stopped" / LAST)
    assert one["global_step"] > STOPPED_AT
    assert_equal(one, last(folder / "one file"))
    export(folder / "parts" / LAST, tmp_path / "last.safetensors")
    assert differences(load_file(tmp_path / "last.safetensors"), last(folder / "parts")["state_dict"]) == []


# Four processes: more stages, and replicas of stages


def check_four(rank: int, world_size: int, folder: Path, gpt: tuple[str, ...], left: Path) -> list[str]:
    become_rank(rank, world_size)
    four = (*gpt, *PIPELINE, "trainer.devices=4", "trainer.strategy.microbatches=2", SHARDED)
    trained(folder / "four", *four, "trainer.strategy.stages=4", extra=[Spoilt()], ckpt_path=left)
    shared, _ = trained(folder / "replicas", *four, "datamodule.global_batch_size=8", BEHIND, extra=[Spoilt()])
    number = stopped(folder / "stopped", *four, "datamodule.global_batch_size=8", extra=[Spoilt()])
    dist.barrier()
    again = (*four, "datamodule.global_batch_size=8")
    resumed, _ = trained(folder / "stopped", *again, extra=[Spoilt()], ckpt_path=folder / "stopped" / LAST)
    assert number == signal.SIGTERM
    return differences(shared | NOWHERE, resumed | NOWHERE)


@pytest.mark.usefixtures("two")
def test_four_stages_go_on_with_it_and_replicas_share_out_what_they_write(
    folder: Path, gpt: tuple[str, ...], tmp_path: Path
) -> None:
    left = folder / "stopped" / LAST
    assert in_ranks(4, partial(check_four, folder=tmp_path, gpt=gpt, left=left), tmp_path) == [[]] * 4
    assert_equal(last(tmp_path / "four"), last(folder / "one file"))
    own = parts(tmp_path / "replicas")
    sizes = [sum(part.values()) for part in own]
    assert len({name for part in own for name in part}) == sum(map(len, own))  # each tensor once
    assert max(sizes) < 0.4 * sum(sizes)
    one, _ = trained(tmp_path / "one", *gpt, "datamodule.global_batch_size=8", extra=[Spoilt()])
    assert_equal(last(tmp_path / "replicas"), one)
