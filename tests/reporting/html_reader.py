"""A page read back: its tables' cells, its other words, its elements."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_EMPTY = {"meta", "br", "link", "img", "path", "use", "input", "hr"}


@dataclass
class Page(HTMLParser):
    """Cells by table: rows of (value, small lines). Every start tag must have its end."""

    tables: dict[str, list[list[tuple[str, list[str]]]]] = field(default_factory=dict)
    headings: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._table = ""
        self._in_small = self._in_head = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append((tag, named))
        if tag not in _EMPTY:
            self._open.append(tag)
        if tag == "table":
            self._table = str(named["id"]).removeprefix("table-")
            self.tables[self._table] = []
            self.headings[self._table] = []
        elif tag == "thead":
            self._in_head = True
        elif tag == "tr" and not self._in_head:
            self.tables[self._table].append([])
        elif tag in ("td", "th") and not self._in_head:
            self.tables[self._table][-1].append(("", []))
        elif tag == "small" and self._table:
            self.tables[self._table][-1][-1][1].append("")
            self._in_small = True

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes something else"
        self._in_small = self._in_small and tag != "small"
        self._in_head = self._in_head and tag != "thead"
        if tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        text = data.strip()
        if not text or self._open[-1] in ("style", "script"):
            return
        self.words.append(text)
        if self._table and self._in_head:
            self.headings[self._table].append(text)
        elif self._table:
            cells = self.tables[self._table][-1]
            value, small = cells[-1]
            if self._in_small:
                small[-1] += text
            else:
                cells[-1] = (value + text, small)

    def rows(self, table: str) -> dict[str, list[tuple[str, list[str]]]]:
        """Rows by their first cell; of rows alike the last."""
        return {row[0][0]: row[1:] for row in self.tables[table]}


def read_page(html: str) -> Page:
    page = Page()
    page.feed(html)
    page.close()
    assert page._open == []
    return page
