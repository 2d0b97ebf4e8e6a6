"""The page: all results in one file; a partial sweep has what there is."""

import json
import re
from pathlib import Path
from typing import Any

import measured
import pytest
from measured import cell
from omegaconf import OmegaConf

from lockstep.errors import ConfigError
from lockstep.report import measurements
from lockstep.report.all_reduce import Times, read_all_reduce
from lockstep.report.page import render, scaling_page, write_report
from lockstep.sweeps.table import look_at, print_table


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
    first = [line for line in text.partition("## What")[0].splitlines() if line]  # the answer, the picture, the table, their base
    assert [line[:2] for line in first] == ["**", "# ", "![", "##", *["| "] * 5, "Ba"]
    assert first[-1].startswith("Based on 5 of 6 jobs, which have finished (devices 1, 2, 4; lr 0.01, 0.02; seed 0).")
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
        (
            [cell(2, status="failed", reason="boom"), cell(4, status="waiting")],
            ["on 0 of 2 jobs", "failed (boom)", "missing (waiting)"],
        ),
        ([cell(2)], ["on 1 of 1 jobs", "only one number of devices has results"]),
        ([cell(1), cell(2, status="running")], ["1 of 2 jobs", "missing (the sweep process died)"]),
        ([cell(1), cell(2, step=0.012)], ["Nothing was repeated"]),
        ([cell(1, batch=32), cell(2, batch=20)], ["neither the batch of a device nor the global batch"]),
        ([cell(1), cell(2, device_name="cpu")], ["Jobs ran on several kinds of device: NVIDIA H100, cpu."]),
        ([cell(n, batch=batch) for n, batch in ((1, 16), (2, 16), (4, 16), (1, 32), (2, 32))], ["2 jobs of other batch sizes"]),
        ([cell(1, overrides=("model=a",)), cell(1, overrides=("model=b",))], ["1 job of model=b left out: --only model=b"]),
    ],
    ids=["nothing", "one point", "one count", "two counts", "mixed", "devices", "batches", "variants"],
)
def test_a_partial_sweep_has_a_report_that_says_what_is_missing(tmp_path: Path, cells: list[Any], said: list[str]) -> None:
    text = page(tmp_path, cells)
    for words in said:
        assert words in text


def test_terminal_record_and_report_have_one_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report had that of the steps alone, where a job recorded it: 8,927 samples/s beside 1,914 of the terminal."""
    cells = [cell(n, global_batch=64, samples_per_second=1914.0 * n, seconds_per_step=64 / 8927 / n) for n in (1, 2)]
    text = page(tmp_path, cells)
    print_table(look_at(tmp_path))
    said = capsys.readouterr().out
    assert ("1,914" in said, "3,828" in said) == (True, True)
    assert ("| 1,914 | 1.00 |" in text, "| 3,828 | 2.00 |" in text, "8,927" in text) == (True, True, False)


def test_the_page_says_what_was_trained_on_what(tmp_path: Path) -> None:
    """Also which overrides all jobs have."""
    folder = measured.sweep(tmp_path, [cell(n, overrides=("trainer.max_epochs=3",)) for n in (1, 2)])
    for path in folder.glob("*/.hydra/config.yaml"):
        config = OmegaConf.load(path)
        config.model.update({"_target_": "lockstep.models.Classifier", "net": {"_target_": "lockstep.nets.CNN"}})
        OmegaConf.save(config, path)
    text = page(folder, [])
    assert "(devices 1, 2; lr 0.1; seed 0; model Classifier; model.net CNN)" in text
    assert "- overrides of all jobs: model.optimizer.lr=0.1 seed=0 trainer.max_epochs=3\n" in text


def test_an_all_reduce_that_was_measured_apart_stands_beside_the_step(tmp_path: Path) -> None:
    """4 MB of gradients, half-way between two sizes. Two devices lose 1 ms, the all-reduce; four lose 10 ms, where it takes 2."""
    cells = [cell(n, step=step) for n, step in ((1, 0.010), (2, 0.011), (4, 0.020), (8, 0.012))]
    all_reduce = {n: ([2_000_000, 6_000_000], [0.0005 * n - 0.0004, 0.0005 * n + 0.0004]) for n in (2, 4)}
    text = page(tmp_path, cells, all_reduce)
    assert "## The all-reduce of the gradients, measured apart\n" in text
    assert ("| 2 | 1 | 10 | 11 |" in text, "| 4 | 2 | 10 | 20 |" in text) == (True, True)
    assert "These numbers do not agree. With devices=4 a step takes longer than" in text


def test_blocks_are_escaped() -> None:
    blocks = [
        {"heading": "a < b"},
        {"text": "x & y"},
        {"list": ["<i>"]},
        {"columns": ["n|m", "v"], "table": [["a\nb|c", "1"]]},
        {"picture": "p", "alt": 'a "q"'},
    ]
    content = {"title": "t <", "answer": "1 < 2", "blocks": blocks}
    html = render("report.html", content | {"images": {"p": "data:image/png;base64,AA=="}})
    assert 'src="data:image/png;base64,AA=="' in html
    assert '<td data-column="n|m">' in html  # what a phone shows beside the cell
    for text in ("a &lt; b", "x &amp; y", "&lt;i&gt;", "t &lt;", "1 &lt; 2", "a &#34;q&#34;"):
        assert text in html
    assert "| a b\\|c | 1 |" in render("report.md", content)


def test_the_file_of_the_all_reduce_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "allreduce.json"
    path.write_text(json.dumps({"backend": "gloo", "processes": {"2": {"sizes": [1024], "seconds": [1e-5]}}}))
    assert read_all_reduce(path) == {2: ([1024], [1e-5])}
    path.write_text("{}")
    with pytest.raises(ConfigError, match="has no times of an all-reduce"):
        read_all_reduce(path)


def test_rates_have_a_line_for_each_count_and_say_where_the_best_is_at_an_end(tmp_path: Path) -> None:
    cells = [cell(n, lr, metric=0.9 - abs(lr - 0.1 * n)) for n in (1, 2) for lr in (0.1, 0.2, 0.3)]
    content = scaling_page(measurements.read(measured.sweep(tmp_path, cells)))
    (picture,) = [block for block in content["blocks"] if block.get("picture") == "rates"]
    (axis,) = picture["draw"]().axes
    assert axis.get_legend_handles_labels()[1] == ["devices=1", "devices=2"]
    assert [block["text"] for block in content["blocks"] if block.get("text", "").startswith("With")] == [
        "With devices=1 the best rate is the smallest or the largest that was tried: a better one may lie beyond."
    ]
