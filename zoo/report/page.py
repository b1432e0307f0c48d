"""A self-contained HTML page: escaped text, inline style, pictures as data URIs, and a policy that forbids the rest."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1d2430; --soft: #5b6573; --line: #dfe3e8;
  --good: #1a7f45; --bad: #c62b3a; --dot: #2f62c4; }
@media (prefers-color-scheme: dark) {
  :root { --page: #11151b; --card: #1a2029; --ink: #e4e8ee; --soft: #a3adba; --line: #323b47;
    --good: #4cc27e; --bad: #ff7682; --dot: #7fa8ff; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; display: grid; gap: 1rem;
  grid-template-columns: minmax(0, 1fr); grid-auto-flow: dense; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; }
p { margin: .5rem 0 .75rem; font-size: .9rem; color: var(--soft); max-width: 46rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td:first-child { white-space: nowrap; }
.wide td:last-child { min-width: 12rem; }
.wide .number:last-child, .heat td:last-child { min-width: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.picture { display: block; width: 100%; max-width: 30rem; height: auto; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0 1rem; margin: .25rem 0; padding: 0;
  font-size: .85rem; overflow-wrap: anywhere; }
.row { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: .6rem; padding: .75rem 0;
  border-top: 1px solid var(--line); }
.row figure:first-child { grid-row: span 2; }
figure { margin: 0; min-width: 0; }
figure img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: #fff;
  border-radius: .25rem; border: 3px solid var(--line); }
figure.good img { border-color: var(--good); }
figure.bad img { border-color: var(--bad); border-style: dashed; }
figcaption { font-size: .72rem; line-height: 1.3; color: var(--soft); overflow-wrap: anywhere; margin-top: .2rem; }
details { margin: .75rem 0; }
summary { cursor: pointer; font-weight: 600; font-size: .95rem; overflow-wrap: anywhere; }
.forest { display: grid; gap: .15rem 1rem; font-size: .88rem; margin: .25rem 0 .75rem; }
.forest > div { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 0 .75rem; padding: .35rem 0;
  border-top: 1px solid var(--line); align-items: center; }
.forest .what { overflow-wrap: anywhere; }
.forest small { display: block; color: var(--soft); font-size: .78rem; }
.forest .mark { font-weight: 600; white-space: nowrap; text-align: right; }
.forest .strip { grid-column: 1 / -1; }
.strip { position: relative; height: 1.1rem; }
.strip i { position: absolute; }
.strip .band { top: 0; bottom: 0; background: var(--line); opacity: .55; }
.strip .at { top: 0; bottom: 0; width: 1px; background: var(--soft); }
.strip .bar { top: 50%; height: 3px; margin-top: -1.5px; background: var(--dot); border-radius: 2px; opacity: .6; }
.strip .dot { top: 50%; width: 9px; height: 9px; margin: -4.5px 0 0 -4.5px; border-radius: 50%;
  background: var(--dot); }
.good .bar, .good .dot { background: var(--good); }
.bad .bar, .bad .dot { background: var(--bad); }
.good .mark { color: var(--good); }
.bad .mark { color: var(--bad); }
.ends { display: flex; justify-content: space-between; color: var(--soft); font-size: .75rem; }
.heat td { text-align: center; min-width: 3.2rem; padding: .3rem; font-variant-numeric: tabular-nums;
  border: 1px solid var(--line); background: color-mix(in srgb, var(--hue) calc(var(--share) * 60%), var(--card)); }
.heat th { padding: .3rem .5rem; text-align: left; white-space: normal; }
ol.legend { list-style: decimal inside; }
@media (min-width: 60rem) {
  .forest > div { grid-template-columns: minmax(0, 27rem) minmax(0, 1fr) 10rem; }
  .forest .strip { grid-column: 2; grid-row: 1; }
  .forest .mark { grid-column: 3; }
  .ends { margin-left: 27.75rem; margin-right: 10.75rem; }
  main { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  h1, .whole { grid-column: 1 / -1; }
  .tall { grid-row: span 2; }
  .row { grid-template-columns: repeat(7, minmax(0, 1fr)); }
  .row figure:first-child { grid-row: auto; }
}
"""


@dataclass(frozen=True)
class Section:
    """A headed part of a page. body: HTML that the functions below have made.

    size: where there is room for two columns, "whole" takes both, "half" one, "tall" one with two others beside it.
    """

    heading: str
    body: str
    size: str = "whole"


def page(title: str, sections: Iterable[Section]) -> str:
    """The whole document."""
    parts = "".join(map(_section, sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{parts}</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    return f'<section class="{escape(section.size)}"><h2>{escape(section.heading)}</h2>{section.body}</section>\n'


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()) -> str:
    """A table that scrolls by itself on a narrow screen; the columns named in `numbers` are aligned to the right."""
    kinds = [' class="number"' if column in numbers else "" for column in columns]
    head = "".join(f"<th{kind}>{escape(column)}</th>" for kind, column in zip(kinds, columns, strict=True))
    lines = ("".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def legend(names: Iterable[str], colours: Sequence[str]) -> str:
    """Names after a dot in the colour of their place, as long as there are colours."""
    parts = [
        f'<li><span style="color:{escape(colour)}">&#9679;</span> {escape(name)}</li>'
        for colour, name in zip(colours, names, strict=False)
    ]
    return f'<ul class="legend">{"".join(parts)}</ul>'


def numbered(names: Iterable[str]) -> str:
    """Names after their number, from 1."""
    return f'<ol class="legend">{"".join(f"<li>{escape(name)}</li>" for name in names)}</ol>'


def folded(heading: str, body: str) -> str:
    """What is shown when its heading is opened. body: HTML that the functions here have made."""
    return f"<details><summary>{escape(heading)}</summary>{body}</details>"


def picture(data: bytes, kind: str, says: str) -> str:
    """An image of the page's width. kind: of the data, as image/png; says: what it shows, in words."""
    return f'<img class="picture" alt="{escape(says)}" src="{data_uri(data, kind)}">'


def thumbnail(data: bytes, caption: str, mark: str = "") -> str:
    """A small JPEG with a caption. mark: "good" or "bad" for a green or a dashed red border."""
    image = f'<img alt="{escape(caption)}" src="{data_uri(data, "image/jpeg")}">'
    return f'<figure class="{escape(mark)}">{image}<figcaption>{escape(caption)}</figcaption></figure>'


def data_uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
