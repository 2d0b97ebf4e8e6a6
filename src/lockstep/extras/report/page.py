"""The page of a sweep: report.html, report.md and the pictures in SWEEP_DIR/report/, and all of it in TensorBoard.

A page has a title, an answer, which is its first sentence, and blocks. A block is a dict: {"heading": TEXT}, {"text": TEXT},
{"list": [TEXT, ...]}, {"table": [[TEXT, ...], ...], "columns": [NAME, ...]}, or {"picture": NAME, "alt": what it shows, "draw": a
function that returns matplotlib's Figure}.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from hydra.utils import get_method

from lockstep.atomic_files import replace_text
from lockstep.extras.report import charts, choice, measurements
from lockstep.extras.report.analysis import Analysis

Block = dict[str, Any]
_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("lockstep.extras.report"),
    autoescape=jinja2.select_autoescape(["html"]),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_report(
    sweep_dir: Path,
    sections: Sequence[str],
    pages: Sequence[str] | None = None,
    only: Sequence[str] = (),
    **known: Any,
) -> tuple[str, Path]:
    """Returns the answer and the path of the HTML file. `sections` and `pages` are those of conf/report.yaml. With `only`, the
    report is of the jobs that have these overrides. `known`: all_reduce of an Analysis. Raises ConfigError if there
    is no sweep."""
    own = (get_method(name)(sweep_dir) for name in (pages or ()) if not only)
    page = next(filter(None, own), None)
    if page is None:
        page = scaling_page(Analysis(measurements.read(sweep_dir, only), **known), sections)
    folder = sweep_dir / "report"
    folder.mkdir(exist_ok=True)
    pictures = [block for block in page["blocks"] if "picture" in block]
    figures = {block["picture"]: charts.draw(block["draw"]) for block in pictures}
    svgs = {name: charts.save(figure, folder, name) for name, figure in figures.items()}
    replace_text(folder / "report.md", render("report.md", page))
    replace_text(folder / "report.html", render("report.html", page | {"svgs": svgs}))
    text = render("report.md", page | {"blocks": [block for block in page["blocks"] if "picture" not in block]})
    _write_events(folder, text, figures)
    return page["answer"], folder / "report.html"


def scaling_page(analysis: Analysis, sections: Iterable[str]) -> dict[str, Any]:
    """Every section that has something to say of the measurements."""
    functions: list[Callable[[Analysis], Iterable[Block]]] = [get_method(name) for name in sections]
    return {
        "title": f"Scaling report of the sweep in {analysis.measured.directory.name}",
        "answer": choice.answer(analysis),
        "blocks": [block for section in functions for block in section(analysis)],
    }


def render(template: str, page: dict[str, Any]) -> str:
    return _templates.get_template(template).render(page)


def _write_events(folder: Path, text: str, figures: dict[str, Any]) -> None:
    """Replaces TensorBoard's run of the folder."""
    from torch.utils.tensorboard import SummaryWriter

    for earlier in folder.glob("events.out.tfevents*"):
        earlier.unlink()
    with SummaryWriter(str(folder)) as writer:
        writer.add_text("report", text)
        for name, figure in figures.items():
            writer.add_figure(f"report/{name}", figure, close=False)
