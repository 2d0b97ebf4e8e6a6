"""The page of a sweep: report.html, report.md and the pictures in SWEEP_DIR/report/.

A page has a title, an answer, which is its first sentence, and blocks. A block is a dict: {"heading": TEXT}, {"text": TEXT},
{"list": [TEXT, ...]}, {"table": [[TEXT, ...], ...], "columns": [NAME, ...]}, or {"picture": NAME, "alt": what it shows, "draw": a
function that returns matplotlib's Figure}.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from lockstep.atomic_files import replace_text
from lockstep.report import charts, sections
from lockstep.report.all_reduce import Times, all_reduce
from lockstep.report.choice import answer
from lockstep.report.measurements import Measurements, read
from lockstep.report.series import find_series

_OPTIONS: Any = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("lockstep.report"), autoescape=jinja2.select_autoescape(["html"]), **_OPTIONS
)


def write_report(sweep_dir: Path, only: Sequence[str] = (), times: Times | None = None) -> tuple[str, Path]:
    """Return the answer and the path of the HTML file; of the jobs that have the overrides `only`, and the `times` of an
    all-reduce. Raises ConfigError if there is no sweep."""
    page = scaling_page(read(sweep_dir, only), times)
    folder = sweep_dir / "report"
    folder.mkdir(exist_ok=True)
    pictures = {block["picture"]: block["draw"] for block in page["blocks"] if "draw" in block}
    images = {name: charts.save(draw, folder / f"{name}.png") for name, draw in pictures.items()}
    replace_text(folder / "report.md", render("report.md", page))
    replace_text(folder / "report.html", render("report.html", page | {"images": images}))
    return page["answer"], folder / "report.html"


def scaling_page(measured: Measurements, times: Times | None = None) -> dict[str, Any]:
    """Every section that has something to say of the measurements."""
    series = find_series(measured)
    blocks = [*sections.scaling(measured, series), *sections.missing(measured, series), *sections.learning_rate(measured, series)]
    blocks += [*all_reduce(series, times or {}), *sections.origin(measured)]
    title = f"Speed and {measured.metric} by number of devices: the sweep in {measured.directory.name}"
    return {"title": title, "answer": answer(measured, series), "blocks": blocks}


def render(template: str, page: dict[str, Any]) -> str:
    return _templates.get_template(template).render(page)
