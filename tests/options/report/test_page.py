"""The page: all results in one file; a partial sweep has what there is."""

import re
from pathlib import Path
from typing import Any

import measured
import pytest
from measured import cell
from omegaconf import OmegaConf

from lockstep.config.construct import construct
from lockstep.places import CONF
from lockstep.report import measurements
from lockstep.report.page import Times, render, scaling_page, write_report


def whole() -> list[dict[str, Any]]:
    """Weak scaling of three counts and two rates; the larger rate diverges on four devices."""
    cells = [cell(n, lr, step=step, metric=0.9 + lr) for n, step in ((1, 0.010), (2, 0.012), (4, 0.0135)) for lr in (0.01, 0.02)]
    cells[-1] = cell(4, 0.02, status="failed", reason="rank 0: at step 3 the loss is nan, of samples 7")
    return cells


def page(folder: Path, cells: list[dict[str, Any]], times: Times | None = None) -> str:
    """report.md; its pictures are drawn, but not written, which takes a second."""
    content = scaling_page(measurements.read(measured.sweep(folder, cells)), times)
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


def test_the_html_is_one_file_that_asks_for_no_other(tmp_path: Path) -> None:
    answer, path = write_report(measured.sweep(tmp_path, whole()))
    names = re.findall(r"\]\((\w+)\.png\)", (path.parent / "report.md").read_text())
    for name in names:
        assert (path.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    html = path.read_text()
    assert f'<p class="answer">{answer}</p>' in html
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')>\s]+)""", html)
    assert all(link.startswith(("#", "data:")) for link in links), links
    assert "<script" not in html
    assert html.count("<img") == len(names) == 2


def test_strong_scaling_compares_accuracy_at_one_batch(tmp_path: Path) -> None:
    cells = [cell(n, seed=seed, global_batch=64, step=0.01 / n, metric=0.9 + 0.01 * seed) for n in (1, 2) for seed in (0, 1)]
    cells += [cell(4, seed=seed, global_batch=64, step=0.003, metric=0.8 + 0.001 * seed) for seed in (0, 1)]
    text = page(tmp_path, cells)
    assert "| equal: +0 |" in text
    assert "| worse: -0.1 [-0.16 to -0.047] |" in text


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([cell(2, status="failed", reason="boom"), cell(4, status="queued")], ["0 of 2 jobs", "failed (boom)", "(queued)"]),
        ([cell(1), cell(2, status="running")], ["1 of 2 jobs", "missing (has no process and no record)"]),
        ([cell(1), cell(2, device_name="cpu")], ["Jobs ran on several kinds of device: NVIDIA H100, cpu."]),
        ([cell(n, batch=batch) for n, batch in ((1, 16), (2, 16), (4, 16), (1, 32), (2, 32))], ["2 jobs of other batch sizes"]),
        ([cell(1, overrides=("model=a",)), cell(1, overrides=("model=b",))], ["1 job of model=b left out: --only model=b"]),
    ],
    ids=["nothing", "one count", "devices", "batches", "variants"],
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
