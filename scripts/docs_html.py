"""A hook of MkDocs: the HTML of the pages can be read on a phone, is found by its words, and needs no other server.

- A table of parameters, and each table of three columns or more, gets a class and its headings as labels of its cells.
  ``docs/stylesheets/pages.css`` shows such a table without scrolling.
- Code blocks are left out of the search, so that it finds pages and not the source of DAGs. Guides and operators come
  before the pages about the inside.
- A diagram becomes part of the page, so that its colours follow the scheme that the reader chose.
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_TAGS = re.compile(r"<[^>]+>")
_CODE = re.compile(r'<div class="(?:language-\w+ )?highlight">')
_DIAGRAM = re.compile(r'<img alt="[^"]*" src="[^"]*?(diagrams/[\w-]+\.svg)"\s*/?>')
_SEARCH_BOOST = {"guides/": 3, "operators/": 2, "reference/": 0.5, "decisions/": 0.5, "architecture.md": 0.5}


def on_page_content(html: str, /, *, page: Any, config: Any, **_: Any) -> str:
    for start, boost in _SEARCH_BOOST.items():
        if page.file.src_uri.startswith(start):
            page.meta.setdefault("search", {"boost": boost})
    html = _DIAGRAM.sub(lambda found: (Path(config.docs_dir) / found[1]).read_text(), html)
    html = _CODE.sub(lambda found: f"{found[0][:-1]} data-search-exclude>", html)
    return _TABLE.sub(lambda found: labelled(found[0]), html)


def labelled(table: str) -> str:
    """A table of three columns or more with its headings as labels of the cells; another one as it is."""
    headings = [unescape(_TAGS.sub("", found)).strip() for found in _HEADING.findall(table)]
    if len(headings) < 3:
        return table
    kind = "parameters" if headings[0] == "parameter" else "stacks"

    def with_labels(row: re.Match[str]) -> str:
        labels = iter(headings)
        return re.sub(r"<td(?=[ >])", lambda _: f'<td data-label="{escape(next(labels), quote=True)}"', row[0])

    return _ROW.sub(with_labels, table).replace("<table>", f'<table class="{kind}">', 1)
