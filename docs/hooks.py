"""Hooks of `mkdocs build`: add the repository's own pages and the notebook to the site, and translate links.

README.md, CONTRIBUTING.md, SECURITY.md, CHANGELOG.md and fixtures/README.md become pages.
A notebook becomes a page without being run. Links are written as they work in the repository; here they become links
between pages. A link to any other file of the repository leads to `extra.repository` if mkdocs.yml has it, and becomes
plain text otherwise. (`repo_url` would not do: with it the theme requests numbers from that host.)
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]

#: Files of the repository, and the pages that they become.
PAGES = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "fixtures/README.md": "fixtures.md",
}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for notebook in sorted((ROOT / "docs").glob("*.ipynb")):
        files.append(File.generated(config, f"{notebook.stem}.md", content=notebook_page(notebook.read_text())))
    return files


def notebook_page(text: str) -> str:
    """Return a notebook as a page: its text, and its code in fences."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the page with links that work in the site."""
    sources = {target: source for source, target in PAGES.items()}
    uri = page.file.src_uri
    source = sources.get(uri, f"docs/{uri}")
    parts = _FENCED.split(markdown)
    repository = config["extra"].get("repository")
    parts[::2] = [_LINK.sub(lambda m: _link(m, source, uri, repository), part) for part in parts[::2]]
    return "".join(parts)


def _link(found: re.Match[str], source: str, uri: str, repository: str | None) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    if ":" in target:  # a scheme
        return found[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if page is not None:
        return f"[{text}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{anchor})"
    if not (ROOT / path).exists():
        raise SystemExit(f"{source} links to {target}, and the repository holds no {path}")
    return f"[{text}]({repository.rstrip('/')}/blob/main/{path})" if repository else text
