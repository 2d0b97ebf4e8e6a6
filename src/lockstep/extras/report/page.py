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
from lockstep.extras.noise_scale.report_section import noise_scale
from lockstep.extras.report import charts, choice, measurements, origin, sections
from lockstep.extras.report.analysis import Analysis
from lockstep.extras.search.report_section import search_page

# From top to bottom: functions that yield the blocks of a section.
SECTIONS = (
    sections.scaling,
    sections.learning_rate,
    sections.memory,
    sections.all_reduce,
    noise_scale,
    origin.missing,
    origin.origin,
)
_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("lockstep.extras.report"),
    autoescape=jinja2.select_autoescape(["html"]),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_report(sweep_dir: Path, only: Sequence[str] = (), **known: Any) -> tuple[str, Path]:
    """Return the answer and the path of the HTML file.

    Args:
        only: overrides; the report is of the jobs that have them.
        known: `all_reduce` of an Analysis.

    Raises:
        ConfigError: there is no sweep.
    """
    page = None if only else search_page(sweep_dir)
    if page is None:
        page = scaling_page(Analysis(measurements.read(sweep_dir, only), **known))
    folder = sweep_dir / "report"
    folder.mkdir(exist_ok=True)
    pictures = [block for block in page["blocks"] if "picture" in block]
    svgs = {block["picture"]: charts.save(charts.draw(block["draw"]), folder, block["picture"]) for block in pictures}
    replace_text(folder / "report.md", render("report.md", page))
    replace_text(folder / "report.html", render("report.html", page | {"svgs": svgs}))
    return page["answer"], folder / "report.html"


def scaling_page(analysis: Analysis) -> dict[str, Any]:
    """Every section that has something to say of the measurements."""
    return {
        "title": f"Scaling report of the sweep in {analysis.measured.directory.name}",
        "answer": choice.answer(analysis),
        "blocks": [block for section in SECTIONS for block in section(analysis)],
    }


def render(template: str, page: dict[str, Any]) -> str:
    return _templates.get_template(template).render(page)
