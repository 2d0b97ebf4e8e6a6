"""report.html, report.md and the pictures of a sweep, in its directory; text and pictures in TensorBoard too."""
# pyright: reportAttributeAccessIssue=false
# (the classes of TensorBoard's protocol buffers are made when they are imported)

import contextlib
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lockstep.atomic_files import replace_text
from lockstep.extras.report import measurements, pictures
from lockstep.extras.report.document import FOLDER, Picture, to_html, to_markdown
from lockstep.extras.report.findings import Assumed, Findings
from lockstep.extras.report.sections import document
from lockstep.extras.search.files import SEARCH

_RGBA = 4  # what matplotlib's PNGs hold


def write_report(sweep_dir: Path, only: Sequence[str] = (), assumed: Assumed | None = None) -> tuple[str, Path]:
    """The answer, and the HTML file: of a search its own page, unless it is to be `only` of some of its jobs. Raises ConfigError
    where there is no sweep."""
    if (sweep_dir / SEARCH).is_file() and not only:
        from lockstep.extras.search import report_section as search

        page = search.document(search.Searched(sweep_dir))
    else:
        page = document(Findings(measurements.read(sweep_dir, only), assumed or Assumed()))
    folder = sweep_dir / FOLDER
    folder.mkdir(exist_ok=True)
    drawn = {block.name: pictures.save(block.draw(), folder, block.name) for block in page.blocks if isinstance(block, Picture)}
    replace_text(folder / "report.md", to_markdown(page))
    replace_text(folder / "report.html", to_html(page, drawn))
    with contextlib.suppress(ImportError):  # without TensorBoard there is nothing to look at it with
        words = [block for block in page.blocks if not isinstance(block, Picture)]
        _write_events(folder, to_markdown(replace(page, blocks=words)), list(drawn))
    return page.answer, folder / "report.html"


def _write_events(folder: Path, text: str, names: Sequence[str]) -> None:
    """TensorBoard's run of the folder: `text`, in Markdown, and the pictures NAME.png; an earlier report's goes. Raises
    ImportError where there is no TensorBoard."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.summary import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for earlier in folder.glob("events.out.tfevents*"):
        earlier.unlink()
    values = [text_pb("report", text).value[0]]
    for name in names:
        content = (folder / f"{name}.png").read_bytes()
        width, height = struct.unpack(">II", content[16:24])  # of the header, which comes first in every PNG
        image = Summary.Image(height=height, width=width, colorspace=_RGBA, encoded_image_string=content)
        values.append(Summary.Value(tag=f"report/{name}", image=image))
    writer = EventFileWriter(str(folder))
    for value in values:
        writer.add_event(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))
    writer.close()
