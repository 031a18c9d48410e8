"""Pages of HTML, read without a browser."""

from __future__ import annotations

from html.parser import HTMLParser


class ReadPage(HTMLParser):
    """Counts elements, and finds attributes that could run or load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.open: list[str] = []
        self.bad: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name.startswith("on") or name in ("src", "style", "srcset", "xlink:href"):
                self.bad.append((tag, name))
            if name == "href" and not (value or "").startswith("#"):
                self.bad.append((tag, value or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
