"""The report where its sweep's curves are looked at: TensorBoard's run of the report's folder."""
# pyright: reportAttributeAccessIssue=false
# (the classes of protocol buffers are made when they are imported)

import struct
import time
from collections.abc import Sequence
from pathlib import Path

_RGBA = 4  # what matplotlib's PNGs hold


def write_events(folder: Path, text: str, pictures: Sequence[str]) -> None:
    """`text`, in Markdown, and the pictures NAME.png of `folder`; in the place of those of an earlier report. Raises ImportError
    where there is no TensorBoard."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.summary import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for earlier in folder.glob("events.out.tfevents*"):
        earlier.unlink()
    values = [text_pb("report", text).value[0], *(_picture(folder / f"{name}.png", f"report/{name}") for name in pictures)]
    writer = EventFileWriter(str(folder))
    for value in values:
        writer.add_event(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))
    writer.close()


def _picture(file: Path, tag: str) -> object:
    from tensorboard.compat.proto.summary_pb2 import Summary

    content = file.read_bytes()
    width, height = struct.unpack(">II", content[16:24])  # of the header, which comes first in every PNG
    return Summary.Value(tag=tag, image=Summary.Image(height=height, width=width, colorspace=_RGBA, encoded_image_string=content))
