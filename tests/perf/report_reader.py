"""Reads a page of `report` as a browser without scripts would."""

import json
from html.parser import HTMLParser
from pathlib import Path

from click.testing import CliRunner

from kvdefrag.perf.__main__ import main


class Page(HTMLParser):
    """Elements, links, the figures, and the cells of every table by the section's id."""

    def __init__(self, text):
        super().__init__()
        self.text = text
        self.tags = []
        self.links = []
        self.sections = []
        self.tables = {}
        self.figures = {}
        self.shown = []
        self._open = []
        self._is_figures = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.links += [given[name] for name in ("src", "href") if name in given]
        self._open.append(tag)
        self._is_figures = given.get("id") == "figures"
        if tag == "section":
            self.sections.append(given["id"])
        elif tag == "tr" and self.sections:
            self.tables.setdefault(self.sections[-1], []).append([])
        elif tag in ("td", "th") and self.sections:
            self.tables[self.sections[-1]][-1].append("")
        elif tag == "data":
            self.tables[self.sections[-1]][-1][-1] = json.loads(given["value"])

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        if self._is_figures:
            self.figures = json.loads(data)
            self._is_figures = False
        elif "script" not in self._open and "style" not in self._open:
            self.shown.append(data)
            if self._open and self._open[-1] in ("td", "th") and self.sections:
                self.tables[self.sections[-1]][-1][-1] += data

    @property
    def words(self):
        """What can be read, on one line."""
        return " ".join(" ".join(self.shown).split())


def report(folder, contents, *options):
    """Write contents by file name, run `report` on them; the result and the page, if any."""
    paths = []
    for name, content in contents.items():
        path = Path(folder) / name
        path.write_text(json.dumps(content))
        paths.append(str(path))
    out = Path(folder) / "page.html"
    result = CliRunner().invoke(main, ["report", *paths, f"--out={out}", *options])
    return result, Page(out.read_text()) if out.exists() else None
