"""Makes the page of a report: one HTML file with everything in it."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from cluster.report.tables import Table

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; margin: 0 auto; padding: 1.5rem;
  max-width: 75rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #ddd; padding-bottom: .2rem; }
figure { margin: 1rem 0 1.6rem; }
figure img { max-width: 100%; height: auto; }
figcaption, .about { color: #444; font-size: .9rem; max-width: 60rem; }
nav a { margin-right: 1rem; white-space: nowrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #e5e5e5; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #bbb; font-weight: 600; }
td.words, th.words { text-align: left; white-space: normal; }
tbody tr:hover { background: #f5f7fa; }
code { background: #f3f3f3; padding: .1rem .3rem; overflow-wrap: anywhere; }
details summary { cursor: pointer; color: #555; }
.bad { color: #a00; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="about">{% for line in about %}{{ line }}<br>{% endfor %}Made with <code>{{ command }}</code></p>
<nav>{% for part in parts %}<a href="#{{ part.name }}">{{ part.title }}</a> {% endfor %}</nav>
{% for part in parts %}
<section id="{{ part.name }}">
<h2>{{ part.title }}</h2>
{% if part.picture %}<figure>
<img src="data:image/png;base64,{{ part.picture }}" alt="{{ part.title }}">
<figcaption>{{ part.caption }}
<details><summary>{{ part.runs | length }} runs, made with {{ command }}</summary>{{ part.runs | join(", ") }}</details>
</figcaption>
</figure>{% else %}<p class="about">{{ part.caption }}</p>{% endif %}
{% if part.table %}<div class="wide"><table>
<thead><tr>{% for name in part.table[0] %}<th{% if name in part.words %} class="words"{% endif %}>{{ name }}</th>
{%- endfor %}</tr></thead>
<tbody>{% for row in part.table %}
<tr>{% for name, cell in row.items() %}<td{% if name in part.words %} class="words"{% endif %}>{{ cell | shown }}</td>
{%- endfor %}</tr>{% endfor %}
</tbody></table></div>{% endif %}
</section>
{% endfor %}
</body>
</html>
"""


@dataclass(frozen=True)
class ReportSection:
    """A section of the page: a figure, a table, or both.

    Attributes:
        name: the name of its anchor in the page, and of its files.
        picture: the figure as PNG.
        runs: the names of the runs that it shows.
    """

    name: str
    title: str
    caption: str
    png: bytes = b""
    table: Table | None = None
    runs: Sequence[str] = ()

    @property
    def picture(self) -> str:
        """The figure, encoded for an HTML image."""
        return base64.b64encode(self.png).decode()

    @property
    def words(self) -> set[str]:
        """The columns that hold text."""
        rows = self.table or []
        return {name for row in rows for name, cell in row.items() if isinstance(cell, str)} - {"reached"}


def page(title: str, about: Sequence[str], command: str, parts: Sequence[ReportSection]) -> str:
    """Returns the report as HTML that needs no other file.

    Args:
        about: the lines below the title.
        command: the command that makes the report.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["shown"] = shown
    given: Mapping[str, Any] = {"title": title, "about": about, "command": command, "parts": parts}
    return environment.from_string(PAGE).render(given)


def shown(cell: Any) -> str:
    """Formats a cell: four digits of a number, or a dash for a missing value."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if cell == int(cell) and abs(cell) < 1e9 else f"{cell:.4g}"
    return str(cell)
