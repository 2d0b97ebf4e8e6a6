"""The page: all results in one file; a partial sweep has what there is."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import measured
import pytest
from browsers import browser
from measured import cell
from omegaconf import OmegaConf

from lockstep.errors import ConfigError
from lockstep.extras.report import measurements
from lockstep.extras.report.analysis import Analysis, read_all_reduce
from lockstep.extras.report.charts import colour_range, draw
from lockstep.extras.report.page import render, scaling_page, write_report
from lockstep.extras.report.sections import learning_rate


def whole() -> list[dict[str, Any]]:
    """Weak scaling of three counts and two rates; the larger rate diverges on four devices."""
    cells = [
        cell(
            n,
            lr,
            step=step,
            metric=0.9 + lr,
            memory_gib_of_ranks=[2.5] * (n - 1) + [2.0],
        )
        for n, step in ((1, 0.010), (2, 0.012), (4, 0.0135))
        for lr in (0.01, 0.02)
    ]
    cells[-1] = cell(4, 0.02, status="failed", reason="rank 0: at step 3 the loss is nan, of samples 7")
    return cells


def page(folder: Path, cells: list[dict[str, Any]], **known: Any) -> str:
    """report.md; its pictures are drawn, but not written, which takes a second."""
    analysis = Analysis(measurements.read(measured.sweep(folder, cells)), **known)
    content = scaling_page(analysis)
    for block in content["blocks"]:
        if "picture" in block:
            assert draw(block["draw"]).axes
    text = render("report.md", content)
    assert text.startswith(f"**{content['answer']}**\n")
    return text


def test_a_whole_sweep_has_every_section(tmp_path: Path) -> None:
    text = page(tmp_path, whole())
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == [
        "Weak scaling, 32 samples per device",
        "Learning rates",
        "Memory",
        "What is missing, and what to be careful about",
        "Where the numbers come from",
    ]
    assert "5 of 6 jobs have finished" in text
    assert "| 4 | 0.01 | 0.91 | worse, from one run: -0.01 | 9,481 | 2.96 | 74% | 13.5 | 0.04 | 128 | 1 |" in text
    assert "| 1 | 2 | 2 | 100% |" in text
    assert "| 2 | 2.5 | 2 | 80% |" in text
    assert "diverged (rank 0: at step 3 the loss is nan, of samples 7)" in text
    for origin in ("0123456789abcdef", "NVIDIA H100", "torch 2.15.0", "node1, 64 cores"):
        assert origin in text
    assert len(re.findall(r"^\| devices=", text, re.MULTILINE)) == 5  # each number's run


def test_the_html_is_one_file_that_asks_for_no_other(tmp_path: Path) -> None:
    answer, path = write_report(measured.sweep(tmp_path, whole()))
    names = re.findall(r"\]\((\w+)\.png\)", (path.parent / "report.md").read_text())
    for name in names:
        assert (path.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        ElementTree.fromstring((path.parent / f"{name}.svg").read_text())
    html = path.read_text()
    assert f'<p class="answer">{answer}</p>' in html
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')>\s]+)""", html)
    assert all(link.startswith(("#", "data:")) for link in links), links
    assert "<script" not in html
    assert html.count("<svg") == len(names) == 2
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids)) > 2  # what one picture refers to is its own


@pytest.mark.slow
def test_no_table_is_cut_off_and_dark_is_dark(tmp_path: Path) -> None:
    """At 1280 pixels, and on a phone."""
    _, path = write_report(measured.sweep(tmp_path, whole()))
    with browser() as running:
        for width in (1280, 390):
            for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(26, 26, 26)")):
                view = running.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
                view.goto(path.as_uri())
                wide = "[...document.querySelectorAll('html, .wide')].filter(one => one.scrollWidth > one.clientWidth).length"
                assert view.evaluate(wide) == 0
                assert view.evaluate("getComputedStyle(document.body).backgroundColor") == paper
                view.close()


def test_strong_scaling_compares_accuracy_at_one_batch(tmp_path: Path) -> None:
    cells = [cell(n, seed=seed, global_batch=64, step=0.01 / n, metric=0.9 + 0.01 * seed) for n in (1, 2) for seed in (0, 1)]
    cells += [cell(4, seed=seed, global_batch=64, step=0.003, metric=0.8 + 0.001 * seed) for seed in (0, 1)]
    text = page(tmp_path, cells)
    assert "| equal: +0 |" in text
    assert "| worse: -0.1 [-0.16 to -0.047] |" in text


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            [cell(2, status="failed", reason="boom"), cell(4, status="waiting")],
            ["0 of 2 jobs", "failed (boom)", "missing (waiting)"],
        ),
        ([cell(2)], ["1 of 1 jobs have", "One number of devices"]),
        ([cell(1), cell(2, status="running")], ["1 of 2 jobs", "missing (the sweep process died)"]),
        ([cell(1), cell(2, 0.2), cell(2, 0.3)], ["has no job for devices=1 at lr 0.2, devices=1 at lr 0.3, devices=2 at lr 0.1"]),
        ([cell(1), cell(2, step=0.012)], ["Nothing was repeated"]),
        ([cell(1, batch=32), cell(2, batch=20)], ["Neither the batch of a device nor the global batch was kept"]),
        ([cell(1), cell(2, git_commit="ffff", git_dirty=True)], ["Jobs of several commits are compared", "not committed"]),
        ([cell(1, overrides=("model=a",)), cell(1, overrides=("model=b",))], ["1 job of model=b left out: --only model=b"]),
    ],
    ids=["nothing", "one point", "one count", "holes", "two counts", "mixed", "commits", "variants"],
)
def test_a_partial_sweep_has_a_report_that_says_what_is_missing(tmp_path: Path, cells: list[Any], said: list[str]) -> None:
    text = page(tmp_path, cells)
    for words in said:
        assert words in text


def test_colours_are_not_spread_over_noise() -> None:
    """0.41 to 0.422 from one run each is a third of the range; what repeats make of it depends on how they differ."""
    low, high = colour_range([[0.41], [0.422]])
    assert low < 0.41 < 0.422 < high
    assert (0.422 - 0.41) / (high - low) < 1 / 3
    assert colour_range([[0.1], [], [0.9]]) == pytest.approx((0.1, 0.9))
    low, high = colour_range([[0.40, 0.42], [0.412, 0.432]])
    assert high - low > 0.1
    assert colour_range([[0.41, 0.41], [0.422, 0.422]]) == pytest.approx((0.41, 0.422))
    assert colour_range([[]]) == (0.0, 1.0)


def test_the_page_says_what_was_trained_on_what(tmp_path: Path) -> None:
    """Also which overrides all jobs have."""
    folder = measured.sweep(tmp_path, [cell(n, overrides=("trainer.max_epochs=3",)) for n in (1, 2)])
    for path in folder.glob("*/.hydra/config.yaml"):
        config = OmegaConf.load(path)
        config.model.update({"_target_": "lockstep.models.Classifier", "net": {"_target_": "lockstep.nets.CNN"}})
        OmegaConf.save(config, path)
    lines = render("report.md", scaling_page(Analysis(measurements.read(folder)))).splitlines()
    assert {"- model: lockstep.models.Classifier", "- model.net: lockstep.nets.CNN"} <= {*lines}
    assert "- overrides of all jobs: model.optimizer.lr=0.1 seed=0 trainer.max_epochs=3" in lines


def test_a_sweep_that_was_extended_has_one_report_of_all(tmp_path: Path) -> None:
    page(tmp_path, [cell(1), cell(2)])
    text = page(tmp_path, [cell(4, step=0.011)])
    assert "3 of 3 jobs" in text
    assert "Take 4 devices at lr 0.1: 3.6x one device" in text


def test_an_all_reduce_that_was_measured_apart_stands_beside_the_step(tmp_path: Path) -> None:
    """4 MB of gradients, half-way between two sizes. Two devices lose 1 ms, the all-reduce; four lose 10 ms, where it takes 2."""
    cells = [cell(n, step=step) for n, step in ((1, 0.010), (2, 0.011), (4, 0.020), (8, 0.012))]
    all_reduce = {n: ([2_000_000, 6_000_000], [0.0005 * n - 0.0004, 0.0005 * n + 0.0004]) for n in (2, 4)}
    text = page(tmp_path, cells, all_reduce=all_reduce)
    assert "## The all-reduce of 4 MB of gradients, measured apart\n" in text
    assert ("| 2 | 1 | 10 | 11 |" in text, "| 4 | 2 | 10 | 20 |" in text) == (True, True)
    assert "These numbers do not agree. With devices=4 a step takes longer than" in text
    assert Analysis(measurements.read(tmp_path), {2: ([1000], [0.5])}).all_reduce_seconds(2) == pytest.approx(2000)


def test_blocks_are_escaped() -> None:
    blocks = [
        {"heading": "a < b"},
        {"text": "x & y"},
        {"list": ["<i>"]},
        {"columns": ["n|m", "v"], "table": [["a\nb|c", "1"]]},
        {"picture": "p", "alt": 'a "q"'},
    ]
    content = {"title": "t <", "answer": "1 < 2", "blocks": blocks}
    html = render("report.html", content | {"svgs": {"p": "<svg></svg>"}})
    assert "<svg></svg>" in html
    assert '<td data-column="n|m">' in html  # what a phone shows beside the cell
    for text in ("a &lt; b", "x &amp; y", "&lt;i&gt;", "t &lt;", "1 &lt; 2", "a &#34;q&#34;"):
        assert text in html
    assert "| a b\\|c | 1 |" in render("report.md", content)


def test_the_file_of_the_all_reduce_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "allreduce.json"
    path.write_text(json.dumps({"backend": "gloo", "processes": {"2": {"sizes": [1024], "seconds": [1e-5]}}}))
    assert read_all_reduce(path) == {2: ([1024], [1e-5])}
    for processes in ({}, {"two": {"sizes": [1], "seconds": [1.0]}}, {"2": {"sizes": [1], "seconds": []}}):
        path.write_text(json.dumps({"processes": processes}))
        with pytest.raises(ConfigError, match="has no times of an all-reduce"):
            read_all_reduce(path)


def test_a_cell_of_the_rates_says_how_its_jobs_ended(tmp_path: Path) -> None:
    cells = [cell(1, 0.1, metric=0.8), cell(1, 0.1, seed=1, status="failed", reason="boom"), cell(2, 0.1, status="waiting")]
    cells += [cell(1, 9.0, status="failed", reason="loss is nan"), cell(2, 9.0, status="failed", reason="boom")]
    _, picture, *_ = learning_rate(Analysis(measurements.read(measured.sweep(tmp_path, cells))))
    (axis,) = draw(picture["draw"]).axes
    assert [text.get_text() for text in axis.texts] == ["0.8\n1 lost", "diverged", "missing", "failed"]
