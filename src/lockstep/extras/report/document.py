"""A page of headings, text, tables and pictures, as Markdown and as one HTML file that needs no other."""

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FOLDER = "report"  # of a sweep's directory: where its page is


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Items:
    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """The first column is a name, the others are set flush right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """`name` of its files, without an ending; `words` for who can't see it; `draw` gives matplotlib's Figure."""

    name: str
    words: str
    draw: Callable[[], Any]


Block = Heading | Text | Items | Table | Picture


@dataclass(frozen=True)
class Document:
    """`answer` is its first line."""

    title: str
    answer: str
    blocks: Sequence[Block]


def to_markdown(document: Document) -> str:
    """Pictures are files beside it: NAME.png."""
    return "\n\n".join([f"**{document.answer}**", f"# {document.title}", *map(_markdown, document.blocks)]) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {text}"
        case Text(text):
            return text
        case Items(items):
            return "\n".join(f"- {item}" for item in items)
        case Picture(name, words, _):
            return f"![{words}]({name}.png)"
        case Table(columns, rows):
            rule = ["---", *["---:"] * (len(columns) - 1)]
            cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (columns, rule, *rows)]
            return "\n".join(f"| {' | '.join(row)} |" for row in cells)


STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #595959; --line: #d0d0d0; --accent: #0072b2; --paper: #fff; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #a3a3a3; --line: #3a3a3a; --accent: #56b4e9; --paper: #1a1a1a; }
  figure[role=img] > svg { filter: invert(.898) hue-rotate(180deg); } /* white becomes the paper's colour, blue stays blue */
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { max-width: 76rem; margin: auto; padding: 1rem; }
p, ul, h1, figure { max-width: 56rem; }
h1 { font-size: 1rem; font-weight: 500; color: var(--soft); margin: 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; }
li, p { overflow-wrap: anywhere; }
.answer { font-size: 1.5rem; line-height: 1.35; font-weight: 600; margin: .3rem 0 1rem; padding-left: .8rem; }
.answer { border-left: .3rem solid var(--accent); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; margin: .6rem 0; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; padding-left: 0; overflow-wrap: anywhere; min-width: 5rem; }
th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
td { vertical-align: top; }
.interval { display: block; font-size: .85em; color: var(--soft); white-space: nowrap; }
figure { margin: 1rem 0; }
svg { max-width: 100%; height: auto; }
@media (max-width: 40rem) { .answer { font-size: 1.2rem; } body { padding: .8rem; } }
@media screen and (max-width: 60rem) { /* a row is a card: its name, then a line for each column */
  .cards, .cards tbody, .cards tr, .cards td { display: block; }
  .cards thead { display: none; }
  .cards tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  .cards td { display: flex; gap: .5rem; border: 0; padding: .1rem 0; }
  .cards td:first-child { font-weight: 600; }
  .cards td:empty { display: none; }
  .cards td::before { content: attr(data-column); color: var(--soft); font-weight: 400; text-align: left; margin-right: auto; }
  .cards .interval { display: inline; }
}
@media print {
  body { max-width: none; font-size: 11pt; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .wide { overflow: visible; }
}
"""


def to_html(document: Document, pictures: Mapping[str, str]) -> str:
    """`pictures`: each as the text of an SVG element, by its name."""
    body = "\n".join(part for block in document.blocks for part in _html(block, pictures))
    title, answer = html.escape(document.title), html.escape(document.answer)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<p class="answer">{answer}</p>
<h1>{title}</h1>
{body}
</body>
</html>
"""


_FITS = 3  # columns that a phone has room for


def _html(block: Block, pictures: Mapping[str, str]) -> Iterator[str]:
    match block:
        case Heading(text):
            yield f"<h2>{html.escape(text)}</h2>"
        case Text(text):
            yield f"<p>{html.escape(text)}</p>"
        case Items(items):
            yield f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in items)}</ul>"
        case Picture(name, words, _):
            yield f'<figure role="img" aria-label="{html.escape(words)}">{pictures[name]}</figure>'
        case Table(columns, rows):
            kind = ' class="cards"' if len(columns) > _FITS else ""
            yield f'<div class="wide"><table{kind}><thead>{_row("th", columns)}</thead><tbody>'
            yield from (_row("td", row, columns) for row in rows)
            yield "</tbody></table></div>"


def _row(tag: str, cells: Sequence[str], columns: Sequence[str] = ()) -> str:
    """`columns` are the cells' names, for where there is no room for a table."""
    names = [f' data-column="{html.escape(name)}"' for name in columns] or [""] * len(cells)
    return f"<tr>{''.join(f'<{tag}{name}>{_cell(cell)}</{tag}>' for name, cell in zip(names, cells, strict=True))}</tr>"


def _cell(text: str) -> str:
    """An interval, in brackets at the end, below its value: beside it, a table would be wider than a page."""
    return re.sub(r" (\[[^\]]*\])$", r' <span class="interval">\1</span>', html.escape(text))
