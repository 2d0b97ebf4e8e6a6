"""A step with a graph beside one without: the same steps, to rounding."""

import logging
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import python
from in_process import KeepAll, become_rank, last, prepared
from lightning import Callback
from omegaconf import OmegaConf
from ranks import in_ranks
from torch._dynamo.utils import counters
from torch.torch_version import TorchVersion

from lockstep.extras.compiled_step import rehearsal
from lockstep.extras.compiled_step.cache import DEFAULT, KEY, shrink, trusted, use_cache
from lockstep.extras.compiled_step.epoch_loop import CompiledEpochLoop
from lockstep.extras.compiled_step.graph import why_torch_does_not
from lockstep.imports import CUDA_DRIVERS
from lockstep.runs.composition import compose
from lockstep.runs.results import collect_facts
from lockstep.runs.validation import validated
from lockstep.sweeps.jobs import computed_config, identity, repetition

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_torch_does_not() is not None, reason=str(why_torch_does_not()))]

CAPTURED = ("trainer.compile_step=true", "events.compiled_step.backend=aot_eager", "events.compiled_step.cache=null")


def train(
    run_dir: Path, *overrides: str, ckpt_path: Path | None = None, extra: list[Callback] | None = None
) -> tuple[dict[str, Any], Any]:
    run_dir.mkdir(parents=True, exist_ok=True)
    datamodule, model, trainer = prepared(run_dir, *overrides, ckpt_path=ckpt_path, extra=extra)
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    return last(run_dir), trainer


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Of the weights, relative to the largest."""
    pairs = [(one["state_dict"][name].double(), other["state_dict"][name].double()) for name in other["state_dict"]]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


CASES = {
    "as it is": (),
    "clipped": ("trainer.gradient_clip_val=0.01",),
    "dropout": ("model.net.dropout=0.3",),
    "a schedule by steps": ("model/lr_scheduler=cosine", "model.optimizer.lr=0.01"),
    "sgd": ("model/optimizer=sgd",),
    "a CNN with BatchNorm": ("model=cnn", "model/optimizer=sgd"),
    "bfloat16": ("trainer.precision=bf16-mixed", "model/optimizer=sgd"),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_without_a_graph(case: str, tmp_path: Path) -> None:
    eager, _ = train(tmp_path / "eager", *CASES[case], "datamodule.batch_size=250")  # a tail in each epoch
    captured, trainer = train(tmp_path / "captured", *CASES[case], *CAPTURED, "datamodule.batch_size=250")
    loop = trainer.fit_loop.epoch_loop
    assert isinstance(loop, CompiledEpochLoop)
    assert loop.graph.why_not is None
    assert len(loop.graph._shapes) == 1
    assert captured["global_step"] == eager["global_step"] > 8
    assert furthest(captured, eager) < 1e-5
    assert furthest({"state_dict": captured["train_means"]}, {"state_dict": eager["train_means"]}) < 1e-5


def test_the_graph_is_torch_s_own_at_each_step(tmp_path: Path) -> None:
    calls: list[int] = []

    def counting(graph: Any, _: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(1)
            return graph(*arguments)

        return call

    datamodule, model, trainer = prepared(tmp_path / "run", *CAPTURED)
    trainer.fit_loop.epoch_loop.graph.backend = counting
    trainer.fit(model, datamodule)
    assert len(calls) == trainer.global_step - 1  # the first went the ordinary way
    facts = collect_facts(trainer)
    assert (facts["compiled_step"], facts["not_compiled"]) == (True, None)


@pytest.mark.parametrize(("version", "is_named"), [("2.6.0", True), ("2.11.0+cu130", True), ("2.12.1", False)])
def test_a_torch_that_leaves_out_what_a_model_counts_in_python_is_named(
    version: str, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    assert (f"torch {version} does not trace torch.autograd.grad, or not rightly" in str(why_torch_does_not())) is is_named


REFUSED = {
    "gradients are accumulated": ("trainer.accumulate_grad_batches=2",),
    "NoiseScale acts between the forward and the backward pass": ("callbacks=noise_scale",),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_can_t_be_captured_is_named_and_trained_all_the_same(
    why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    eager, _ = train(tmp_path / "eager", *REFUSED[why])
    with caplog.at_level(logging.WARNING):
        run, trainer = train(tmp_path / "run", *REFUSED[why], *CAPTURED)
    (said,) = [record.message for record in caplog.records if "compile_step" in record.message]
    assert why in said
    assert furthest(run, eager) == 0
    facts = collect_facts(trainer)
    assert facts["compiled_step"] is False
    assert why in facts["not_compiled"]


def test_a_net_that_breaks_the_graph_is_named_and_trained_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def reading(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        return output * (2.0 if output.sum().item() > 1e9 else 1.0)

    ends = []
    for options in ((), CAPTURED):
        datamodule, model, trainer = prepared(tmp_path / f"run{len(ends)}", *options)
        model.net.register_forward_hook(reading)
        trainer.fit(model, datamodule)
        ends.append({"state_dict": model.state_dict()})
    assert furthest(*ends) == 0
    (said,) = [record.message for record in caplog.records if "compile_step" in record.message]
    assert "not compiled: " in said
    assert "\n" not in said


def test_a_net_that_counts_its_steps_is_named_and_trained_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ends = []
    for options in ((), CAPTURED):
        calls: list[int] = []

        def counting(_: Any, __: Any, output: torch.Tensor, calls: list[int] = calls) -> torch.Tensor:
            calls.append(1)
            return output * (1 + 0.01 * len(calls))

        datamodule, model, trainer = prepared(tmp_path / f"run{len(ends)}", "trainer.max_epochs=4", *options)
        model.net.register_forward_hook(counting)
        trainer.fit(model, datamodule)
        ends.append({"state_dict": model.state_dict()})
    assert furthest(*ends) < 1e-6
    (said,) = [record.message for record in caplog.records if "not compiled" in record.message]
    assert "they would be compiled anew each time" in said
    assert collect_facts(trainer)["not_compiled"] in said


def test_a_run_that_is_continued_within_an_epoch_makes_the_same_steps(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    whole, _ = train(tmp_path / "whole", *CAPTURED, extra=[KeepAll(kept)])
    resumed, trainer = train(tmp_path / "resumed", *CAPTURED, ckpt_path=kept / "6.ckpt")
    assert trainer.fit_loop.epoch_loop.graph.has_begun
    assert resumed["global_step"] == whole["global_step"] > 8
    assert furthest(resumed, whole) < 1e-5


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="has no compiler")
def test_a_second_run_compiles_nothing(tmp_path: Path) -> None:
    options = ("trainer.compile_step=true", f"events.compiled_step.cache={tmp_path / 'cache'}", "trainer.max_epochs=1")
    eager, _ = train(tmp_path / "eager", "trainer.max_epochs=1")
    misses, hits, files = [], [], []
    for number in range(2):
        torch.compiler.reset()  # as a process of its own begins
        counters.clear()
        run, trainer = train(tmp_path / str(number), *options)
        assert trainer.fit_loop.epoch_loop.graph.why_not is None
        assert furthest(run, eager) < 1e-5
        misses.append(counters["inductor"]["fxgraph_cache_miss"])
        hits.append(
            sum(counters[kind][f"{name}_cache_hit"] for kind, name in (("inductor", "fxgraph"), ("aot_autograd", "autograd")))
        )
        files.append(sorted(path for path in (tmp_path / "cache" / f"compiled-torch-{torch.__version__}").rglob("*.so")))
    assert misses == [1, 0]
    assert hits[0] == 0 < hits[1]
    assert files[0] == files[1] != []


IMPORTS = """
import os, sys, torch
asked = []
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    setattr(torch._C, name, lambda name=name: asked.append(name) or 0)
import lockstep.extras.compiled_step.record
print("torch._inductor.compile_fx" in sys.modules, asked, torch.cuda.is_initialized(), len(os.listdir("/proc/self/task")))
from torch._inductor import codecache
def hashed(*_): raise AssertionError("is hashed anew")
codecache.build_code_hash = hashed
print(len(codecache.torch_key()))
"""


def test_the_compiler_is_imported_where_jobs_are_forked_from_and_starts_nothing_there(tmp_path: Path) -> None:
    """By the module of what the config names. The key of torch's version is made then, too, and no GPU is touched."""
    cfg = compose("trainer.compile_step=true")
    assert cfg.guards.compiled_step._target_ == "lockstep.extras.compiled_step.record.GraphRecord"
    done = python("-c", IMPORTS, cwd=tmp_path)
    assert done.stdout.splitlines() == ["True [] False 1", "32"], done.stderr


REHEARSED = """
import os, subprocess, sys, torch
from omegaconf import OmegaConf
from tqdm import tqdm
from lockstep.extras.compiled_step.events import CompileStep
import lockstep.extras.compiled_step.rehearsal

def look():
    threads = len(os.listdir("/proc/self/task"))
    return torch._dynamo.config.trace_autograd_ops, tqdm.monitor_interval, threads, torch.get_rng_state().tolist()

before = look()
CompileStep(True, "inductor", sys.argv[1], 1.0).imported(OmegaConf.create({"allow": None}))
print(look() == before, flush=True)
if os.fork() == 0:
    def refuse(*_, **__): raise AssertionError("starts a program")
    subprocess.Popen.__init__ = refuse
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    torch.ones(512, 512) @ torch.ones(512, 512)
    torch.compiler.reset()
    step = torch.compile(lambda inputs: inputs + 1, dynamic=False, options={"fallback_random": True, "compile_threads": 1})
    print(weight.grad.tolist(), step(torch.zeros(2, 3)).sum().item(), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="has no compiler")
@pytest.mark.skipif(any(Path(driver).exists() for driver in CUDA_DRIVERS), reason="there is a GPU, which it leaves alone")
def test_a_rehearsal_leaves_no_thread_and_no_setting_and_its_forks_ask_no_compiler_for_anything(tmp_path: Path) -> None:
    """Without it each would have g++ expand a header. Autograd works in them, which it does not where it has started threads, and
    operations that are shared among threads."""
    done = python("-c", REHEARSED, tmp_path / "cache", cwd=tmp_path, OMP_NUM_THREADS="2")
    assert done.stdout.splitlines() == ["True", "[2.0, 2.0, 2.0] 6.0"], done.stderr


def test_where_there_is_a_gpu_nothing_is_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver").touch()
    monkeypatch.setattr(rehearsal, "CUDA_DRIVERS", (str(tmp_path / "driver"),))
    monkeypatch.setattr(rehearsal, "compiled", lambda *_: pytest.fail("torch would touch it"))
    rehearsal.rehearse("inductor")


def of_two(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    common = (f"trainer.devices={world_size}", "datamodule.batch_size=125")
    result = {}
    for name, options in {"eager": (), "captured": CAPTURED}.items():
        for net in ("mlp", "cnn"):
            content, trainer = train(folder / f"{name}_{net}", *common, *options, f"model={net}", "model/optimizer=sgd")
            graph = getattr(trainer.fit_loop.epoch_loop, "graph", None)
            result[name, net] = {"state_dict": content["state_dict"], "why_not": graph and graph.why_not}
    return result


def test_two_processes_make_the_steps_that_they_make_without_a_graph(tmp_path: Path) -> None:
    for rank in in_ranks(2, partial(of_two, folder=tmp_path / "runs"), tmp_path):
        assert rank["captured", "mlp"]["why_not"] is None
        assert furthest(rank["captured", "mlp"], rank["eager", "mlp"]) < 1e-5
        assert rank["captured", "cnn"]["why_not"]  # its BatchNorm is synchronised by collectives
        assert furthest(rank["captured", "cnn"], rank["eager", "cnn"]) < 1e-5


def test_what_is_compiled_is_kept_below_the_user_s_cache_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    prepared(tmp_path / "run", "trainer.compile_step=true")
    kept = tmp_path / ".cache" / "lockstep" / "compiled" / f"compiled-torch-{torch.__version__}"
    assert kept.is_dir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(kept)


def test_without_a_folder_of_its_own_it_is_kept_where_torch_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no home, or none that can be written to."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "torch's own")
    (tmp_path / "file").touch()
    for folder in (Path("~nobody-is-called-so", "compiled"), tmp_path / "file" / "compiled"):
        with caplog.at_level(logging.WARNING):
            use_cache(folder, 1.0)
        assert f"{KEY}={folder}: " in caplog.text
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "torch's own"


def test_in_a_sweep_it_is_another_job_and_no_repetition_of_the_one_without() -> None:
    default, *given = (
        computed_config(validated(compose(*one))[0], ())
        for one in ((), *([f"trainer.compile_step={v}"] for v in ("false", "true")))
    )
    assert given[0] == default
    assert identity(given[1]) != identity(default)
    assert repetition(given[1]) != repetition(default)


def test_what_is_kept_is_bounded_and_young_files_stay(tmp_path: Path) -> None:
    folder, other = tmp_path / "compiled-torch-0", tmp_path / "torch-models"
    for one in (folder, other):
        one.mkdir()
    (other / "weights").write_bytes(bytes(9000))
    os.utime(other / "weights", (0, 0))
    for number in range(4):
        (folder / str(number)).write_bytes(bytes(1000))
        os.utime(folder / str(number), (time.time() - (4 - number) * 2000,) * 2)
    shrink(tmp_path, 2500)
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3"]
    shrink(tmp_path, 0)
    assert [path.name for path in folder.iterdir()] == ["3"]
    assert (other / "weights").exists()  # it was not made by a run


def test_a_directory_does_not_say_where_compiled_code_lies(caplog: pytest.LogCaptureFixture) -> None:
    folder = "/somebody/compiled"
    assert trusted(OmegaConf.create({"allow": None}), folder) == folder
    assert trusted(OmegaConf.create({"allow": [KEY]}), folder) == folder
    with caplog.at_level(logging.INFO):
        assert trusted(OmegaConf.create({"allow": ["timm"]}), folder) == DEFAULT
    assert f"{KEY}={folder}: a directory says so" in caplog.text
    assert compose().events.compiled_step.cache == DEFAULT
