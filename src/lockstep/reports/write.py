"""report.html, report.md and the pictures of a sweep, in its directory; the pictures in TensorBoard too."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from lockstep.atomic_files import replace_text
from lockstep.reports import measurements, pictures
from lockstep.reports.document import FOLDER, Document, Picture, to_html, to_markdown
from lockstep.reports.findings import Assumed, Findings
from lockstep.reports.sections import document
from lockstep.reports.tensorboard import write_events
from lockstep.sweeps.job_directory import SEARCH


def write_report(sweep_dir: Path, only: Sequence[str] = (), assumed: Assumed | None = None) -> tuple[str, Path]:
    """The answer, and the HTML file: of a search its own page, unless it is to be `only` of some of its jobs. Raises ConfigError
    where there is no sweep."""
    if (sweep_dir / SEARCH).is_file() and not only:
        from lockstep.reports import search  # Optuna

        searched = search.Searched(sweep_dir)
        return _write(sweep_dir, search.document(searched), lambda name: search.drawing(name, searched))
    found = Findings(measurements.read(sweep_dir, only), assumed or Assumed())
    return _write(sweep_dir, document(found), lambda name: drawing(name, found))


def _write(sweep_dir: Path, page: Document, draw: Callable[[str], Figure]) -> tuple[str, Path]:
    folder = sweep_dir / FOLDER
    folder.mkdir(exist_ok=True)
    names = [block.name for block in page.blocks if isinstance(block, Picture)]
    drawn = {name: pictures.save(draw(name), folder, name) for name in names}
    replace_text(folder / "report.md", to_markdown(page))
    replace_text(folder / "report.html", to_html(page, drawn))
    with contextlib.suppress(ImportError):  # without TensorBoard there is nothing to look at it with
        words = [block for block in page.blocks if not isinstance(block, Picture)]
        write_events(folder, to_markdown(replace(page, blocks=words)), names)
    return page.answer, folder / "report.html"


def drawing(name: str, found: Findings) -> Figure:
    """The picture of that name."""
    measured, series = found.measured, found.series
    if name == "rates":
        best = {point.devices: point.lr for point in series.points} if series else {}
        return pictures.rate_map(found.grid, measured.metric, measured.maximize, best)
    if name == "time":
        return pictures.time_shares(found.time_shares)
    if name == "accuracy":
        assert found.same_batch
        return pictures.accuracy(found.same_batch, measured)
    assert series
    if name == "scaling":
        return pictures.scaling(series, found.fit)
    assert found.fit
    return pictures.step_model(series, found.fit, max(16, 2 * found.fit.counts[-1]))
