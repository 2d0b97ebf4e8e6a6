"""What cannot start says so in one line, ends with code 2, and leaves nothing but a directory with that reason."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import LONG, ROOT, python, refused, runs, started
from omegaconf import DictConfig
from PIL import Image

from lockstep.runs.composition import compose

# What people type wrong: the command line, and how the one line begins that they see.
WRONG = {
    "trainer.divices=2": "trainer.divices=2: unknown key; did you mean trainer.devices? use",
    "modle=cnn": "modle=cnn: unknown key; did you mean model? use",
    "devices=2": "devices=2: unknown key; did you mean trainer.devices? use",
    "epochs=3": "epochs=3: unknown key; did you mean trainer.max_epochs? use",
    "model=transformer": "model=transformer: use one of ",
    "model=linear model.adapt.rank=1": "model.adapt.rank=1: unknown key; use a key that",
    "model.optimizer=sgd": "model.optimizer=sgd: a group of values; use model/optimizer=sgd",
    "trainer.devices=[0": "trainer.devices=[0: not a valid override",
    "trainer.devices=1,2 seed=0": "trainer.devices=1,2: Ambiguous value for argument 'trainer.devices=1,2' 1. To use it as a ",
    "trainer.devices=two": "trainer.devices=two: use a whole number or auto or a list",
    "trainer.accelerator=gpu": "trainer.accelerator=gpu: this machine shows no GPU",
    "trainer.max_epochs=abc": "trainer.max_epochs=abc: use a whole number or null",
    "trainer.precision=8": "trainer.precision=8: use ",
    "model.optimizer.lr=fast": "model.optimizer.lr=fast: use a number",
    "model.optimizer.betas=[2,2]": "model.optimizer: Invalid beta parameter at index 0: 2",
    "model.net.width=0 trainer.devices=2": "model.net.width=0: is less than 1; use at least 1",
    "model.net._target_=lockstep.nets.CNNN": "model.net._target_=lockstep.nets.CNNN: ",
    "+trainer.strategy.no_such_argument=1": "trainer.strategy.no_such_argument=1: no such argument; use ",
    "callbacks=early_stopping callbacks.early_stopping.patience=-7": "callbacks.early_stopping.patience=-7: is less than 0; use",
    "callbacks=early_stopping callbacks.early_stopping.monitor=val/auc": "callbacks.early_stopping.monitor=val/auc: the model",
    "callbacks.progress=true": "callbacks.progress=true: use a group with a _target_",
    "+datamodule.augment.pad=1": "datamodule.augment: CropFlip.__init__() got an unexpected keyword argument 'pad'",
    "datamodule.fold=1": "datamodule.fold=1: is not one of datamodule.folds=None; use 0 to 0",
    "datamodule.batch_size=16 datamodule.global_batch_size=64": "datamodule.batch_size=16: is given beside datamodule.global",
    "datamodule.global_batch_size=49 trainer.devices=2": "datamodule.global_batch_size=49: is not divisible by 2",
    "datamodule.val_fraction=2": "datamodule.val_fraction=2: leaves nothing to train on; use 0 to 0.9",
    "datamodule=image_folder datamodule.data_dir=nowhere": "datamodule.data_dir=nowhere: no such folder: ",
    "init_from=none.ckpt": "init_from=none.ckpt: no such file: ",
    "resume=nowhere": "resume=nowhere: is not the directory of a run (it has no .hydra/config.yaml)",
    "optimized_metric=val/f1": "optimized_metric=val/f1: the model declares train/loss, train/acc",
    "init_from=a=1/none.ckpt": "init_from=a=1/none.ckpt: no such file: ",
    "sweep=lr": "sweep=lr: is for sweeps; use -m",
    "hydra.launcher=slurm seed=0,1 -m": "hydra.launcher=slurm: a group of values; use hydra/launcher=slurm",
    "hydra.run.dir=mine seed=0,1 -m": "hydra.run.dir=mine: is for one run; use hydra.sweep.dir=mine",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_people_type_wrong_is_one_line_with_the_key(wrong: str, tmp_path: Path) -> None:
    if "gpu" in wrong and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert refused(tmp_path, *wrong.split()).startswith(WRONG[wrong])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("a: 1\n  b: [2\n", "line 2: mapping values are not allowed here"),
        ("a: 1\na: 2\n", "line 2: found duplicate key a"),
    ],
)
def test_a_mistake_in_a_config_file_is_named_by_its_line(content: str, line: str, tmp_path: Path) -> None:
    (file := tmp_path / "experiment" / "mine.yaml").parent.mkdir()
    file.write_text(content)
    assert refused(tmp_path, f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine") == f"{file}, {line}; use YAML"


def test_an_experiment_whose_keys_would_be_ignored_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "experiment" / "mine.yaml").parent.mkdir()
    file.write_text("name: mine\nseed: 1\n")
    line = "experiment={name, seed}: nothing reads what is under experiment; use a file that begins with `# @package _global_`"
    assert refused(tmp_path, f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine") == line


def test_a_corrupt_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "whole.ckpt")
    content = (tmp_path / "whole.ckpt").read_bytes()
    (tmp_path / "cut.ckpt").write_bytes(content[: len(content) // 2])
    assert refused(tmp_path, "init_from=cut.ckpt").startswith("init_from=cut.ckpt: not a readable checkpoint")


def test_a_second_command_on_a_running_directory_changes_nothing(tmp_path: Path) -> None:
    """Hydra would write its own files before the run asks for the lock."""
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    for name in ("config.yaml", "hydra.yaml", "overrides.yaml"):
        (tmp_path / "run" / ".hydra" / name).write_text("of the first\n")
    holder = "import time; from pathlib import Path; from lockstep.runs.locks import Lock; "
    holder += "Lock(Path('run'), ''); print(flush=True); time.sleep(60)"
    with started("-c", holder, cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        line = refused(tmp_path, "hydra.run.dir=run", "seed=9", HYDRA_FULL_ERROR="0")
        assert line.startswith(f"hydra.run.dir={tmp_path}/run: is being run by process {process.pid} on ")
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        process.kill()


@pytest.mark.slow
def test_a_batch_larger_than_the_data_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, "datamodule.global_batch_size=1400", "trainer.devices=2")
    accepted = "use a smaller one, or datamodule.drop_last=false"
    assert line == f"datamodule.global_batch_size=1400: a step has 1400 samples, and the training split 1293; {accepted}"


EVERY = 11  # of some 150 lines
SHORT = ("debug=fast", "trainer=cpu", "trainer.max_steps=1", "trainer.enable_progress_bar=false")
REGRESSION = ("optimized_metric=val/loss", "optimized_mode=min")
# A key is tried in the first of these that has it.
BASES: tuple[tuple[str, ...], ...] = (
    ("model=mlp", "logger=csv"),
    ("logger=tensorboard",),
    (
        *("model=cnn", "model/optimizer=sgd", "model/lr_scheduler=cosine", "callbacks=[default,early_stopping]"),
        *("datamodule=synthetic_images", "datamodule.length=256", "datamodule.val_length=64", "datamodule.test_length=64"),
    ),
    ("model=linear", "model/lr_scheduler=plateau", "datamodule=random_regression", "callbacks=ema", *REGRESSION),
    ("model=mlp", "model/adapt=lora", "callbacks=freeze", "callbacks.freeze.match=lora_up"),
    ("model=mlp", "datamodule/curriculum=root"),
    ("model=resnet18", "model/optimizer=adam", "model/lr_scheduler=one_cycle", "trainer/communication=fp16"),
    ("model/lr_scheduler=step", "datamodule=image_folder", "datamodule.data_dir=pictures", "datamodule.batch_size=2"),
    (
        *("model=gpt_nano", "datamodule=text", f"datamodule.paths=[{ROOT}/README.md]", *REGRESSION),
        *("datamodule.batch_size=2", "datamodule.context=16"),
    ),
)
UNCHECKED = (
    "default_max_epochs",
    "model.lr_scheduler.",
    "trainer.strategy.bucket_cap_mb",
)
NAMED_BY_USERS = ("model.torchmetrics",)  # whose entries have names of the user's choice


def lines() -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield overrides that fit together, one that is wrong with them, and the key that its refusal names."""
    seen = {"run_dir"}
    for base in BASES:
        for key, value in walk(compose(*SHORT, *base)):
            if key not in seen:
                if isinstance(value, int | float) and not isinstance(value, bool) and not key.startswith(UNCHECKED):
                    yield base, f"{key}=x", key
                if isinstance(value, DictConfig):
                    yield base, f"{key}.no_such_key=1", f"{key}.no_such_key"
                    yield base, f"+{key}.no_such_key=1", key if key in NAMED_BY_USERS else f"{key}.no_such_key"
            seen.add(key)


def walk(cfg: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in cfg.items():
        yield f"{prefix}{name}", value
        if isinstance(value, DictConfig):
            yield from walk(value, f"{prefix}{name}.")


@pytest.mark.slow
@pytest.mark.timeout(LONG)
def test_bad_command_lines_end_with_one_line_and_that_reason(tmp_path: Path) -> None:
    for number in range(24):
        folder = tmp_path / "pictures" / "abc"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (10 * number, 0, 0)).save(folder / f"{number}.png")
    before = sorted(tmp_path.rglob("*"))
    problems = []
    for base, line, key in list(lines())[::EVERY]:
        done = python(ROOT / "train.py", *SHORT, *base, line, cwd=tmp_path)
        subject, _, accepted = done.stderr.strip().partition(": ")
        is_named = key in subject or (key.startswith(subject) and key.rpartition(".")[2] in accepted)
        is_one_line = done.stderr.count("\n") == 1 and is_named and accepted
        reasons = [json.loads((run / "status.json").read_text())["reason"] for run in runs(tmp_path)]
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
        is_said = all(reason in done.stderr for reason in reasons) and sorted(tmp_path.rglob("*")) == before
        if done.returncode != 2 or not is_one_line or not is_said:
            problems.append((base, line, done.returncode, done.stderr))
    assert problems == []
