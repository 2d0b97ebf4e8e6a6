"""A command that can't start prints one line, ends with code 2, and leaves no directory."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from commands import refused, started

# What people type wrong: the command line, and how the one line begins that they see.
WRONG = {
    "trainer.divices=2": "trainer.divices=2: unknown key; did you mean trainer.devices? use",
    "modle=cnn": "modle=cnn: unknown key; did you mean model? use",
    "devices=2": "devices=2: unknown key; did you mean trainer.devices? use",
    "model.nett.width=8": "model.nett.width=8: unknown key; did you mean model.net.width? use",
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
    "model.net._target_=lockstep.nets.CNNN": (
        "model.net._target_=lockstep.nets.CNNN: No module named 'lockstep.nets.CNNN'; did you mean lockstep.nets.CNN?"
    ),
    "+trainer.strategy.no_such_argument=1": "trainer.strategy.no_such_argument=1: no such argument; use ",
    "callbacks=early_stopping callbacks.early_stopping.patience=-7": "callbacks.early_stopping.patience=-7: is less than 0; use",
    "callbacks=early_stopping callbacks.early_stopping.monitor=val/auc": "callbacks.early_stopping.monitor=val/auc: the model",
    "guards.watchdog.seconds=x": "guards.watchdog.seconds=x: use a number",
    "+guards.checkpoint.no_such_key=1": "guards.checkpoint.no_such_key=1: no such argument; use ",
    "datamodule=synthetic_images datamodule.length=x": "datamodule.length=x: use a whole number",
    "callbacks.progress=true": "callbacks.progress=true: use a group with a _target_",
    "+datamodule.augment.pad=1": "datamodule.augment: CropFlip.__init__() got an unexpected keyword argument 'pad'",
    "datamodule.fold=1": "datamodule.fold=1: is not one of datamodule.folds=None; use 0 to 0",
    "datamodule.batch_size=16 datamodule.global_batch_size=64": "datamodule.batch_size=16: is given beside datamodule.global",
    "datamodule.global_batch_size=1400 trainer.devices=2": "datamodule.global_batch_size=1400: a step has 1400 samples, and the",
    "datamodule.global_batch_size=49 trainer.devices=2": "datamodule.global_batch_size=49: is not divisible by 2",
    "datamodule.val_fraction=2": "datamodule.val_fraction=2: leaves nothing to train on; use 0 to 0.9",
    "datamodule=image_folder datamodule.data_dir=nowhere": "datamodule.data_dir=nowhere: no such folder: ",
    "init_from=none.ckpt": "init_from=none.ckpt: no such file: ",
    "resume=nowhere": "resume=nowhere: is not the directory of a run (it has no .hydra/config.yaml)",
    "optimized_metric=val/f1": "optimized_metric=val/f1: the model declares train/loss, train/acc",
    "init_from=a=1/none.ckpt": "init_from=a=1/none.ckpt: no such file: ",
    "sweep=lr": "sweep=lr: is for sweeps; use -m",
    "hydra.launcher=slurm seed=0,1 -m": "hydra.launcher=slurm: a group of values; use hydra/launcher=slurm",
    "hydra/launcher=ray seed=0,1 -m": "hydra/launcher=ray: the library `ray` is not installed: pip install 'lockstep[ray]'",
    "hydra.run.dir=mine seed=0,1 -m": "hydra.run.dir=mine: is for one run; use hydra.sweep.dir=mine",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_people_type_wrong_is_one_line_with_the_key(wrong: str, tmp_path: Path) -> None:
    if "gpu" in wrong and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    if "ray" in wrong and find_spec("ray") is not None:
        pytest.skip("Ray is installed")
    assert refused(tmp_path, *wrong.split()).startswith(WRONG[wrong])
    assert [*tmp_path.glob("logs/*/*")] == []


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("a: 1\n  b: [2\n", "FILE, line 2: mapping values are not allowed here; use YAML"),
        ("a: 1\na: 2\n", "FILE, line 2: found duplicate key a; use YAML"),
        ("name: mine\nseed: 1\n", "experiment={name, seed}: nothing reads what is under experiment; use a file that begins "),
    ],
)
def test_a_mistake_in_a_config_file_is_named(content: str, line: str, tmp_path: Path) -> None:
    (file := tmp_path / "experiment" / "mine.yaml").parent.mkdir()
    file.write_text(content)
    said = refused(tmp_path, f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine")
    assert said.startswith(line.replace("FILE", str(file)))


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
