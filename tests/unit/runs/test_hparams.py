"""TensorBoard's view of a finished run."""

from pathlib import Path

from in_process import composed, prepared
from saved_run import save_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.atomic_files import write_json
from lockstep.runs.record import JOB
from lockstep.runs.results import hyperparameters, log_result


def test_tensorboard_has_each_point_once(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, "logger=tensorboard")
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule, verbose=False)
    log_result(composed(run_dir=tmp_path), trainer, {}, {"val/acc": 0.5, "test/acc": 0.25})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    steps = {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert all(
        len(points) == len(set(points)) for tag, points in steps.items() if tag != "epoch"
    )  # Lightning's, beside each group
    assert (steps["val/acc"], steps["train/loss"], steps["test/acc"]) == ([3, 7, 11], [3, 7, 11], [12])
    points = {tag: [event.value for event in events.Scalars(tag)] for tag in ("val/acc", "Optimized/val/acc")}
    assert points["Optimized/val/acc"] == [*points["val/acc"], 0.5]  # the last is that of the best checkpoint
    assert steps["Optimized/val/acc"] == [3, 7, 11, 12]
    assert min(steps) == "Optimized/val/acc"  # TensorBoard shows them in their order
    assert not any("best" in tag for tag in steps)


def test_hyperparameters_are_the_overridden_keys_and_in_a_job_of_a_sweep_the_swept_ones(tmp_path: Path) -> None:
    overrides = ["model=cnn", "model/optimizer=sgd", "seed=3", "model.label_smoothing=0.1"]
    save_run(tmp_path, *overrides, choices={"model": "cnn", "model/optimizer": "sgd"})
    cfg, facts = composed(*overrides, run_dir=tmp_path), {"world_size": 2, "lr": 0.2, "precision": "32-true"}
    chosen = {"model": "cnn", "model/optimizer": "sgd", "seed": 3, "model.label_smoothing": 0.1}
    assert hyperparameters(cfg, facts) == chosen | {"world_size": 2, "lr": 0.2}
    write_json(tmp_path / "status.json", {JOB: {"swept": ["model=cnn", "seed=3"]}})
    assert hyperparameters(cfg, facts) == {"model": "cnn", "seed": 3}
