"""The line of an epoch, which breaks between its metrics on a terminal."""

import logging
import shutil
import sys
import textwrap
from collections.abc import Sequence


class CellFormatter(logging.Formatter):
    """Lines on a terminal break between the `cells` of a record that has some, and never inside one."""

    def format(self, record: logging.LogRecord) -> str:
        line, cells = super().format(record), getattr(record, "cells", None)
        return line if cells is None or not sys.stdout.isatty() else in_lines(cells, shutil.get_terminal_size().columns)


def in_lines(cells: Sequence[str], width: int) -> str:
    """The cells with two blanks between them, in as few lines of `width` columns as hold them whole."""
    whole = "  ".join(cell.replace(" ", "\xa0") for cell in cells)  # a blank at which no line is broken
    lines = textwrap.wrap(whole, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\xa0", " ")
