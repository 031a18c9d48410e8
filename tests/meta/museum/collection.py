"""The museum's exhibits: bugs that kernels of quantized products had in real life, each with its right twin.

An exhibit is one file of `exhibits/`: a kernel as a user would write it, FILE.cu or FILE.py, that declares itself, and
a block of comments with TOML, in which a line that is indented goes on with the one before:

    // [museum]
    // source = "ggml-org/llama.cpp#8311"   where it happened, or "constructed (why)"
    // class = "end of K"                   kind of bug
    // essence = "…"                        what was wrong, in a sentence
    // shows_when = "…"                     for which inputs
    // names = ["end-of-k-dropped"]         faults of the catalogue that name it rightly
    // says = ["never written"]             patterns, one of which the report's words must hold where no fault names it
    // right = [["BUG = 1", "BUG = 0"]]     what makes the twin of it; this is the default
    // quick = true                         in tests/corpus.py, too: at most 8, each of another class
    // [/museum]
"""

from __future__ import annotations

import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent
#: What was found when all were last verified: `python -m tests.meta.museum` writes it.
RESULTS = HERE.parents[2] / "docs" / "museum.json"
#: What today's tree does not find or name: tests expect just these to fail.
PENDING = HERE / "pending.toml"
_BLOCK = re.compile(r"^(?://|#) \[museum\]\n(.*?)^(?://|#) \[/museum\]", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^(?://|#) ?", re.MULTILINE)
_GOES_ON = re.compile(r"\n {2,}")
_FORMAT = re.compile(r"formats\s*=\s*\[\"(\w+)\"\]")


class Label(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"kind": "class"}):
    """What an exhibit's file says of it: see this module's text."""

    source: str
    kind: str
    essence: str
    shows_when: str
    names: list[str]
    says: list[str]
    right: tuple[tuple[str, str], ...] = (("BUG = 1", "BUG = 0"),)
    quick: bool = False


class Exhibit:
    """A file of `exhibits/`."""

    def __init__(self, path: Path) -> None:
        self.path, self.id = path, path.stem
        self.text = path.read_text()
        found = _BLOCK.search(self.text)
        assert found is not None, f"{path.name} says nothing of itself"
        self.label = msgspec.convert(tomllib.loads(_GOES_ON.sub(" ", _COMMENT.sub("", found[1]))), Label, strict=True)

    @property
    def historical(self) -> bool:
        """Whether it happened, as far as its source says."""
        return not self.label.source.startswith("constructed")

    @cached_property
    def format(self) -> str:
        """The one type of weights that it takes."""
        found = _FORMAT.search(self.text)
        assert found is not None, f"{self.path.name} declares no single type"
        return found[1]

    @property
    def model(self) -> str:
        """The type of the model that it must be tried on: its own, unless the bug is that it is never called."""
        return "F16" if self.label.kind == "never called" else self.format

    def twin(self, folder: Path) -> Path:
        """The right kernel, as a file of the same name in a folder that gets what it includes."""
        text = self.text
        for old, new in self.label.right:
            before, after = text.split("[/museum]", 1)
            assert after.count(old) == 1, f"{self.path.name} holds {old!r} {after.count(old)} times"
            text = f"{before}[/museum]{after.replace(old, new)}"
        for header in self.path.parent.glob("*.cuh"):
            (folder / header.name).write_bytes(header.read_bytes())
        path = folder / self.path.name
        path.write_text(text)
        return path


EXHIBITS = {path.stem: Exhibit(path) for path in sorted((HERE / "exhibits").iterdir()) if path.suffix in (".cu", ".py")}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of an exhibit.

    Args:
        verdict: of the whole run.
        plan: "brief" or "full": the probe plan that it was verified by. Of those that the brief one finds, no more is
            asked.
        rungs: those that it did not pass.
        naming: "right", "unknown" or "wrong".
        names: ids of the faults that the diagnosis named.
        failure: the first line of what is wrong.
        twin: the verdict on the right twin, by the full plan; "" where that was not run.
        gates: other checks, and whether they let the exhibit pass.
    """

    verdict: str
    plan: str
    rungs: list[str]
    naming: str
    names: list[str]
    failure: str
    twin: str
    gates: dict[str, bool]

    @property
    def caught(self) -> bool:
        """Whether the kernel is not verified."""
        return self.verdict != "verified"

    def as_json(self) -> Any:
        return msgspec.to_builtins(self)


def findings() -> dict[str, Finding]:
    """The findings that `RESULTS` holds, by exhibit."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, Finding])


def pending() -> dict[str, dict[str, str]]:
    """ "caught" and "named" → exhibit → in a word, what is missing."""
    return msgspec.toml.decode(PENDING.read_bytes(), type=dict[str, dict[str, str]])
