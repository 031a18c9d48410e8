"""The museum's exhibits: real bugs of kernels for quantized products, each with its correct twin.

An exhibit is one file in `exhibits/`: a kernel as a user would write it, FILE.cu or FILE.py, with its declaration and a
label. The label is a block of comments with TOML, in which an indented line continues the line before:

    // [museum]
    // source = "ggml-org/llama.cpp#8311"   where it happened, or "constructed (why)"
    // class = "end of K"                   kind of bug
    // essence = "…"                        the bug, in a sentence
    // shows_when = "…"                     the inputs for which it shows
    // names = ["end-of-k-dropped"]         faults of the catalogue that are a correct diagnosis
    // says = ["never written"]             patterns; the report must match one if it names none of these faults
    // right = [["BUG = 1", "BUG = 0"]]     replacements that make the twin; this is the default
    // quick = true                         also in tests/corpus.py: at most 8, each of another class
    // [/museum]
"""

from __future__ import annotations

import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

HERE = Path(__file__).parent
#: Results of the last verification, written by `python -m tests.meta.museum`.
RESULTS = HERE.parents[2] / "docs" / "museum.json"
#: Exhibits that are not yet rejected or diagnosed: tests expect exactly these to fail.
PENDING = HERE / "pending.toml"
_BLOCK = re.compile(r"^(?://|#) \[museum\]\n(.*?)^(?://|#) \[/museum\]", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^(?://|#) ?", re.MULTILINE)
_GOES_ON = re.compile(r"\n {2,}")
_FORMAT = re.compile(r"formats\s*=\s*\[\"(\w+)\"\]")


class Label(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"kind": "class"}):
    """The label of an exhibit: see the module's docstring."""

    source: str
    kind: str
    essence: str
    shows_when: str
    names: list[str]
    says: list[str]
    right: tuple[tuple[str, str], ...] = (("BUG = 1", "BUG = 0"),)
    quick: bool = False


class Exhibit:
    """A file in `exhibits/`."""

    def __init__(self, path: Path) -> None:
        self.path, self.id = path, path.stem
        self.text = path.read_text()
        found = _BLOCK.search(self.text)
        assert found is not None, f"{path.name} has no label"
        self.label = msgspec.convert(tomllib.loads(_GOES_ON.sub(" ", _COMMENT.sub("", found[1]))), Label, strict=True)

    @property
    def historical(self) -> bool:
        """Whether it is a real bug, according to its source."""
        return not self.label.source.startswith("constructed")

    @cached_property
    def format(self) -> str:
        """The one weight type that it supports."""
        found = _FORMAT.search(self.text)
        assert found is not None, f"{self.path.name} declares no single type"
        return found[1]

    @property
    def model(self) -> str:
        """The type of the model to verify it with: its own type, unless the bug is that it is never called."""
        return "F16" if self.label.kind == "never called" else self.format

    def twin(self, folder: Path) -> Path:
        """Write the correct kernel, and the headers that it includes, to a folder. Returns its path."""
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


#: What the first wrong call of an exhibit takes of its code: see `GivenAway`.
Why = Literal["branch", "every line", "named lines", "first call", "no call", "not counted"]


class GivenAway(msgspec.Struct, frozen=True, kw_only=True):
    """What gave an exhibit away, measured by `given_away`.

    Args:
        rung: the rung of the first failure; "" if there is none.
        check: the call that fails, in words, with what it has of its own: a comparison of the code, classes of fields.
        why: "branch": `branches` are only taken by the wrong call. "every line": right calls run all that it runs.
            "named lines": it ran in a checked build, which does not count, and right calls run the lines that the
            finding names. "first call": no right call is before it. "no call": no call is wrong. "not counted": it ran
            in a checked build, or its process ended.
        branches: FILE:LINE and the text of the line, the first ones.
        right: number of calls before it.
    """

    rung: str
    check: str
    why: Why
    branches: tuple[str, ...] = ()
    right: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result for an exhibit.

    Args:
        verdict: of the whole run.
        plan: the probe plan, "brief" or "full". The full plan is only used if the brief one is not enough.
        rungs: those that it did not pass.
        naming: whether the diagnosis is "right", "unknown" or "wrong".
        names: ids of the faults in the diagnosis.
        failure: the first line about a failure.
        twin: the verdict on the correct twin, by the full plan; "" if that was not run.
        gates: other checks, and whether they let the exhibit pass.
        given_away: what gave it away.
    """

    verdict: str
    plan: str
    rungs: list[str]
    naming: str
    names: list[str]
    failure: str
    twin: str
    gates: dict[str, bool]
    given_away: GivenAway | None = None

    @property
    def caught(self) -> bool:
        """Whether the kernel is not verified."""
        return self.verdict != "verified"

    def as_json(self) -> Any:
        return msgspec.to_builtins(self)


def findings(path: Path = RESULTS) -> dict[str, Finding]:
    """Read a file of findings, by exhibit."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Finding])


def pending() -> dict[str, dict[str, str]]:
    """Read `PENDING`: "caught" and "named" → exhibit → short reason."""
    return msgspec.toml.decode(PENDING.read_bytes(), type=dict[str, dict[str, str]])
