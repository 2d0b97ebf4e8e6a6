"""The report of a sweep: rows from its directory, the answer in words, the page, and the commands that write and measure."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, python
from fake_sweep import cell, measured
from omegaconf import OmegaConf

from lockstep.config.construct import construct
from lockstep.errors import ConfigError
from lockstep.places import CONF
from lockstep.report import choice, measurements
from lockstep.report.measurements import read
from lockstep.report.page import Times, render, scaling_page
from lockstep.report.series import find_series


def test_jobs_that_differ_in_other_keys_are_kept_apart(tmp_path: Path) -> None:
    cells = [cell(devices, overrides=(f"model={model}",)) for model in ("mlp", "cnn") for devices in (1, 2)]
    sweep = measured(tmp_path, [*cells, cell(4, overrides=("model=cnn",))])
    rows = read(sweep)
    assert (rows.rows[0].variant, rows.left_out) == (("model=cnn",), {("model=mlp",): 2})
    assert [row.devices for row in rows.rows] == [1, 2, 4]
    assert [row.devices for row in read(sweep, ["model=mlp"]).rows] == [1, 2]
    with pytest.raises(ConfigError, match="--only=model=vgg: no job has these"):
        read(sweep, ["model=vgg"])


def test_the_rate_of_a_plain_module_is_an_axis_and_devices_are_those_it_ran_on(tmp_path: Path) -> None:
    cells = [cell(1, lr, rate="learning_rate") for lr in (0.001, 0.01)]
    rows = read(measured(tmp_path, [*cells, cell(8, 0.001, rate="learning_rate", world_size=4)])).rows
    assert [(row.devices, row.lr, row.variant) for row in rows] == [(1, 0.001, ()), (1, 0.01, ()), (4, 0.001, ())]


def test_a_rate_at_which_a_repeat_has_diverged_is_the_best_where_there_is_no_other(tmp_path: Path) -> None:
    """The mean of those that have finished is that of the lucky ones."""
    unlucky = [cell(1, 0.3, metric=0.9), cell(1, 0.3, 1, status="failed", reason="at step 3 the loss is nan")]
    steady = [cell(1, 0.1, seed, metric=0.8) for seed in (0, 1)]
    for folder, jobs, rate in (("both", steady + unlucky, 0.1), ("one", unlucky, 0.3)):
        assert find_series(read(measured(tmp_path / folder, jobs))).base.lr == rate


def answer(folder: Path, cells: list[dict[str, Any]]) -> str:
    rows = measurements.read(measured(folder, cells))
    return choice.answer(rows, find_series(rows))


def test_the_most_devices_that_pay_are_taken_and_the_next_count_is_compared(tmp_path: Path) -> None:
    steps = {1: 0.0100, 2: 0.0102, 4: 0.0108, 8: 0.0180}  # seconds
    cells = [cell(n, lr, step=step, metric=0.95 + lr) for n, step in steps.items() for lr in (0.01, 0.003)]
    assert answer(tmp_path, cells) == (
        "Take 4 devices at lr 0.01: 3.7x one device (3.70x to 3.70x) at the same val/acc (0.96, one device 0.96); "
        "8 give 1.2x the speed and cost 1.7x the device-hours."
    )


BOOM = {"status": "failed", "reason": "boom"}
NOTHING = "No claim about speed: "
UNKNOWN = f"{NOTHING}whether 2 devices are faster than 1 is not known "
SECONDS = {1: (0.01, 0.012), 2: (0.004, 0.05)}  # a step of two seeds, by devices
ONE_CORE = {"accelerator": "cpu", "cpu_count": 2, "cores": 1}
ANSWERS = {
    "costs accuracy": (
        [cell(1, metric=0.95, step=0.010), cell(2, metric=0.85, step=0.0101)],
        "Take 1 device at lr 0.1: val/acc 0.95, and more devices are not worth it; 2 give 2x the speed and lose 0.1 of val/acc.",
    ),
    "one count": (
        [cell(2, lr, metric=lr) for lr in (0.5, 0.6)] + [cell(4, **BOOM)],
        f"{NOTHING}only one number of devices has results. val/acc is 0.6 on 2 devices at lr 0.6.",
    ),
    "neither batch": (
        [cell(1, batch=32), cell(2, batch=20, metric=0.8)],
        f"{NOTHING}neither the batch of a device nor the global batch is the same over the counts. "
        "val/acc is 0.9 on 1 device at lr 0.1, 0.8 on 2 devices at lr 0.1 (worse).",
    ),
    "none": ([cell(2, **BOOM)], "None of 1 job has finished with a result: nothing can be said yet."),
    "an interval that contains one": (
        [cell(n, seed=seed, step=SECONDS[n][seed]) for n in (1, 2) for seed in (0, 1)],
        f"{UNKNOWN}(0.00x to ",
    ),
    "few cores": (
        [cell(n, step=step, **ONE_CORE) for n, step in ((1, 0.01), (2, 0.012))],
        f"{UNKNOWN}(there were 2 threads on 1 core in 1 of 2 jobs).",
    ),
    "more than can be": (
        [cell(1, step=0.0876), cell(2, step=0.010)],
        f"{NOTHING}2 devices were 17.5x as fast as 1, more than ideal;",
    ),
    "more than twice, by caches": ([cell(1, step=0.0105), cell(2, step=0.010)], "Take 2 devices"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_the_answer_claims_what_is_known_alone(what: str, tmp_path: Path) -> None:
    cells, said = ANSWERS[what]
    assert answer(tmp_path, cells).startswith(said)


def whole() -> list[dict[str, Any]]:
    """Weak scaling of three counts and two rates; the larger rate diverges on four devices."""
    cells = [cell(n, lr, step=step, metric=0.9 + lr) for n, step in ((1, 0.010), (2, 0.012), (4, 0.0135)) for lr in (0.01, 0.02)]
    cells[-1] = cell(4, 0.02, status="failed", reason="rank 0: at step 3 the loss is nan, of samples 7")
    return cells


def page(folder: Path, cells: list[dict[str, Any]], times: Times | None = None) -> str:
    """report.md; its pictures are drawn, but not written, which takes a second."""
    content = scaling_page(measurements.read(measured(folder, cells)), times)
    for block in content["blocks"]:
        if "picture" in block:
            assert block["draw"]().axes
    text = render("report.md", content)
    assert text.startswith(f"**{content['answer']}**\n")
    return text


def test_a_whole_sweep_has_every_section(tmp_path: Path) -> None:
    text = page(tmp_path, whole())
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == [
        "Weak scaling: 32 samples per device",
        "What is missing, and what to be careful about",
        "Learning rates",
        "Where the numbers come from",
    ]
    assert "Based on 5 of 6 jobs, which have finished (devices 1, 2, 4; lr 0.01, 0.02; seed 0)." in text
    assert "| 4 | 0.01 | 0.91 | worse, from one run: -0.01 | 9,481 | 2.96 | 74% | 128 | 1 |" in text
    assert "diverged (rank 0: at step 3 the loss is nan, of samples 7)" in text
    for origin in ("0123456789abcdef", "NVIDIA H100", "torch: 2.15.0, lightning: 2.6.6", "host: node1"):
        assert origin in text


def test_strong_scaling_compares_accuracy_at_one_batch(tmp_path: Path) -> None:
    metrics = {1: (0.9, 0.91), 2: (0.9, 0.91), 4: (0.8, 0.801)}
    cells = [
        cell(n, seed=seed, global_batch=64, step=0.01 / n, metric=two[seed]) for n, two in metrics.items() for seed in (0, 1)
    ]
    text = page(tmp_path, cells)
    assert "| equal: +0 |" in text
    assert "| worse: -0.1 [-0.16 to -0.047] |" in text


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([cell(2, status="failed", reason="boom"), cell(4, status="queued")], ["0 of 2 jobs", "failed (boom)", "(queued)"]),
        ([cell(1), cell(2, device_name="cpu")], ["Jobs ran on several kinds of device: NVIDIA H100, cpu."]),
        ([cell(n, batch=batch) for n, batch in ((1, 16), (2, 16), (4, 16), (1, 32), (2, 32))], ["2 jobs of other batch sizes"]),
        ([cell(1, overrides=("model=a",)), cell(1, overrides=("model=b",))], ["1 job of model=b left out: --only model=b"]),
    ],
    ids=["nothing", "devices", "batches", "variants"],
)
def test_a_partial_sweep_has_a_report_that_says_what_is_missing(tmp_path: Path, cells: list[Any], said: list[str]) -> None:
    text = page(tmp_path, cells)
    assert all(words in text for words in said), text


def test_an_all_reduce_that_was_measured_apart_stands_beside_the_step(tmp_path: Path) -> None:
    """4 MB of gradients, half-way between two sizes. Two devices lose 1 ms, the all-reduce; four lose 10 ms, where it takes 2."""
    cells = [cell(n, step=step) for n, step in ((1, 0.010), (2, 0.011), (4, 0.020), (8, 0.012))]
    all_reduce = {n: ([2_000_000, 6_000_000], [0.0005 * n - 0.0004, 0.0005 * n + 0.0004]) for n in (2, 4)}
    text = page(tmp_path, cells, all_reduce)
    assert ("| 2 | 1 | 10 | 11 |" in text, "| 4 | 2 | 10 | 20 |" in text) == (True, True)
    assert "These numbers do not agree. With devices=4 a step takes longer than" in text


def test_a_report_that_fails_at_a_sweep_s_end_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report: Any = construct("report", OmegaConf.to_container(OmegaConf.load(CONF / "report.yaml")))
    report.on_multirun_end(OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}, "launcher": {}}}))
    assert "There is no report: ConfigError: SWEEP_DIR=" in caplog.text


def test_it_prints_and_writes_the_times_of_all_counts_up_to_the_largest(tmp_path: Path) -> None:
    options = ("--processes", "2", "3", "--seconds", "0.1", "--largest", "0.01", "--json", "times.json", "--backend", "gloo")
    done = python(ROOT / "scripts" / "allreduce.py", *options, cwd=tmp_path, GLOO_SOCKET_IFNAME="lo", code=0)
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.split()[0].isdecimal()]
    assert rows == [[count, size] for count in ("2", "3") for size in ("1", "4")]
    written = json.loads((tmp_path / "times.json").read_text())["processes"]
    assert {count: times["sizes"] for count, times in written.items()} == {"2": [1024, 4096], "3": [1024, 4096]}


REPORT = ROOT / "scripts" / "report.py"
FIXED = ("trainer.accelerator=cpu", "fresh_processes=True", "sweep=scaling", "hydra.sweep.dir=sweep")


@pytest.mark.slow
def test_a_scaling_sweep_ends_with_its_report_and_a_script_makes_it_again(tmp_path: Path) -> None:
    grid = ("trainer.devices=1,2", "model.optimizer.lr=0.1")
    done = python(ROOT / "tests" / "support" / "fakes" / "program.py", "-m", *FIXED, *grid, cwd=tmp_path, code=0)
    line = "Take 2 devices at lr 0.1: 2x one device (not repeated) at the same val/acc"
    folder = tmp_path / "sweep" / "report"
    assert line in done.stdout
    assert str(folder / "report.html") in done.stdout
    first, html = ((folder / name).read_text() for name in ("report.md", "report.html"))
    assert first.startswith(f"**{line}")
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')>\s]+)""", html)
    assert all(link.startswith(("#", "data:")) for link in links), links  # one file, which asks for no other
    assert "<script" not in html
    assert html.count("<img") == len(re.findall(r"\]\(\w+\.png\)", first)) > 0
    for path in folder.iterdir():
        path.unlink()
    again = python(REPORT, "sweep", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith(line)
    assert (folder / "report.md").read_text() == first
