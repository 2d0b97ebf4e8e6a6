"""`python train.py -m sweep=plan`: of a stand-in program whose answer is known, and of a small training."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, python, started, train
from planted_answers import Quadratic
from planted_program import NOISE, SMALLEST
from waiting import wait_for

from lockstep.extras.plan.branches import Branch

LARGEST, JOBS_BEFORE_BRANCHES = 2, 5
JOBS = 12  # or a few more
PROGRAM = Path(__file__).with_name("planted_program.py")
PLANTED = (
    "-m",
    "sweep=plan",
    "trainer=cpu",
    "model=mlp",
    "model/optimizer=sgd",
    "model.optimizer.lr=0.2",
    f"plan.largest={LARGEST}",
)
PLANTED += ("datamodule.batch_size=16", "trainer.max_epochs=10", "plan.points=4", "plan.repeats=1", "hydra.sweep.dir=plan")
PLANTED += ("plan.all_reduce=null",)  # the links are made up
KILLS = int(os.environ.get("KILLS", "2"))


def planned(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "plan" / "plan.json").read_text())


def finished(folder: Path) -> int:
    return len([*folder.glob("plan/*/metrics.json")])


@pytest.mark.slow
def test_a_plan_killed_at_several_moments_says_what_an_undisturbed_one_would(tmp_path: Path) -> None:
    for kill in range(KILLS):
        with started(PROGRAM, *PLANTED, cwd=tmp_path) as process:
            wait_for(lambda kill=kill: finished(tmp_path) > JOBS * (kill + 0.5) / KILLS - 1)
            process.send_signal(signal.SIGKILL)
    done = python(PROGRAM, *PLANTED, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = planned(tmp_path)
    assert plan["answer"].startswith("Take ")
    assert f" as fast to val/loss {plan['target']:.3g} as 1 device with batch 16, at " in plan["answer"]
    assert f"Follow it: {' '.join(plan['overrides'])}" in done.stdout
    assert {one["is_measured"] for one in plan["candidates"] if one["devices"] == 8} == {False}
    assert plan["samples"]["measured"] <= 0.2 * plan["samples"]["training"]
    assert (tmp_path / "plan" / "report" / "front.png").is_file()

    planted = Quadratic(noise=NOISE, smallest=SMALLEST, every=plan["samples"]["of_a_point"], seed=0)
    for one in plan["branches"]:
        branch = Branch(0, one["batch"] // SMALLEST, one["lr"], one["repeat"])
        (curve,) = planted.measure([branch], len(one["losses"]) - 1)
        assert one["losses"] == pytest.approx(curve, rel=1e-3)
    assert {one["batch"] for one in plan["branches"]} == {SMALLEST, LARGEST * SMALLEST}
    assert finished(tmp_path) == plan["jobs"] >= JOBS_BEFORE_BRANCHES + len(plan["branches"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("model.optimizer.lr=0.1,0.2",), "model.optimizer.lr=0.1,0.2: a plan finds the batch and the rate itself"),
        (("trainer.devices=2,4",), "trainer.devices=2,4: accepted is 1 and others"),
        (("trainer.devices=1",), "trainer.devices=1: two of them must be timed here"),
        (("trainer.devices=glob(*)",), "trainer.devices=: accepted is 1 and others"),
        (("plan.run=nowhere",), "plan.run=nowhere: has no checkpoints; accepted is the directory of a run"),
        (("trainer.max_steps=100",), "trainer.max_steps=100: a batch of another size has other steps"),
        (("trainer.max_epochs=-1",), "trainer.max_epochs=-1: a plan compares parts of a training, which must have an end"),
        (("plan.largest=3",), "plan.largest=3: accepted is a power of two"),
        (("plan.bugdet=0.1",), "plan.bugdet"),
    ],
)
def test_what_can_not_be_planned_is_refused_in_one_line(overrides: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = python(ROOT / "train.py", "-m", "sweep=plan", "trainer=cpu", *overrides, "hydra.sweep.dir=plan", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert not (tmp_path / "plan").exists()


def test_a_budget_that_can_not_pay_for_an_answer_is_refused_after_the_job_that_counts_the_samples(tmp_path: Path) -> None:
    sweep = ("-m", "sweep=plan", "trainer=cpu", "trainer.devices=1,2", "model=mlp", "hydra.sweep.dir=plan")
    for epochs, words in ((1, "accepted is a longer training"), (20, "accepted is 1.7 or more, or a longer training")):
        done = python(ROOT / "train.py", *sweep, f"trainer.max_epochs={epochs}", cwd=tmp_path)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "plan.budget=0.2: timings and the shortest branches take " in done.stderr
        assert words in done.stderr
        assert finished(tmp_path) == 1


def test_a_dry_run_prints_the_first_jobs_and_leaves_nothing(tmp_path: Path) -> None:
    sweep = ("-m", "sweep=plan", "trainer=cpu", "trainer.devices=1,2", "hydra.launcher.dry_run=true")
    done = python(ROOT / "train.py", *sweep, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trainer.max_steps=24") == 2
    assert "no jobs yet" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_plan_from_the_checkpoints_of_a_run(tmp_path: Path) -> None:
    """The run had two epochs; planned are twenty."""
    small = ("model=mlp", "model.net.hidden=[8]", "datamodule.batch_size=16", "trainer.max_epochs=2", "test=false")
    assert train(*small, "hydra.run.dir=run", cwd=tmp_path).returncode == 0
    sweep = ("trainer.max_epochs=20", "trainer.devices=1,2", "plan.budget=0.5", "plan.largest=2", "plan.repeats=1")
    sweep += ("plan.points=4",)
    done = python(ROOT / "scripts" / "plan.py", "run", *sweep, "hydra.sweep.dir=plan", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = planned(tmp_path)
    assert plan["answer"] in done.stdout
    reached = json.loads((tmp_path / "run" / "metrics.json").read_text())["metrics"]["val/loss"]
    assert plan["target"] in (None, pytest.approx(reached))  # None: nothing can be said
    assert plan["batch"] == 16
    assert [row["from"] for row in plan["critical_batches"]] == [0, 1280, 2560]  # epochs of whole batches
    at_the_rule = {(one["batch"], one["lr"]) for one in plan["branches"] if one["from"]}
    assert len(at_the_rule) == 2
    done = python(ROOT / "scripts" / "plan.py", "nowhere", *sweep, cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere: has no run.json" in done.stderr
