"""Which lines inputs reach: the coverage of the kept inputs, and which inputs are worth keeping.

    python -m tests.fuzz.lines report FOLDER TARGET…     as JSON, of the kept inputs and those in FOLDER/TARGET
    python -m tests.fuzz.lines keep FOLDER TARGET…       keep the fewest of both that reach as much

Coverage has to begin before the package is imported, so this runs in a process of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.target import Target

HARNESS = Path(__file__).parents[2] / "harness"
PACKAGE = HARNESS / "gguf_verify"
#: In a folder of the corpus: the inputs that once broke something, which are always kept.
FOUND = "found-"

Arcs = frozenset[tuple[str, int, int]]


def report(folder: Path, names: list[str]) -> list[dict[str, Any]]:
    """Coverage of the modules that the targets name: module, target, percent of lines and of branches, the missing
    lines, and how many inputs were run."""
    import coverage

    tool = coverage.Coverage(data_file=None, branch=True, config_file=False, include=[f"{PACKAGE}/*"])
    tool.exclude(r"if TYPE_CHECKING:|raise AssertionError|assert_never|^ *(def .*: )?\.\.\.$")
    found = []
    tool.start()
    try:
        chosen = _targets(names)
        counts = {target.name: _run_all(target, folder) for target in chosen}
    finally:
        tool.stop()
    with tempfile.NamedTemporaryFile(suffix=".json") as written:
        tool.json_report(outfile=written.name)
        files = json.loads(Path(written.name).read_text())["files"]
    files = {str(Path(name).resolve()): said for name, said in files.items()}
    for target in chosen:
        for module in target.covered:
            said = files[str(_path(module))]
            lines, branches = (said["summary"][key] for key in ("covered_lines", "num_branches"))
            total = lines + said["summary"]["missing_lines"]
            reached = said["summary"].get("covered_branches", 0)
            found.append(
                {
                    "target": target.name, "module": module, "inputs": counts[target.name],
                    "lines": 100 * lines / total, "branches": 100 * reached / branches if branches else 100.0,
                    "missing": said["missing_lines"],
                }
            )  # fmt: skip
    return found


def _targets(names: list[str]) -> list[Target]:
    from tests.fuzz.target import targets

    return [targets()[name] for name in names or targets()]


def _path(module: str) -> Path:
    return (HARNESS / module.replace(".", "/")).with_suffix(".py").resolve()


def _inputs(target: Target, folder: Path) -> dict[bytes, str]:
    """The kept inputs, and those in FOLDER/TARGET, each with the name to keep it under."""
    from tests.fuzz.runs import name_of

    found = {path.read_bytes(): path.name for path in target.kept}
    more = folder / target.name
    for path in sorted(more.iterdir()) if more.is_dir() else []:
        data = path.read_bytes()
        if len(data) <= target.largest:
            found.setdefault(data, name_of(data))
    return found


def _run_all(target: Target, folder: Path) -> int:
    inputs = _inputs(target, folder)
    with tempfile.TemporaryDirectory() as work:
        for data in inputs:
            target.check(Path(work), data)
    return len(inputs)


# -- choosing inputs --------------------------------------------------------------------------------------------


def traced(run: Callable[[], object], within: str = str(PACKAGE)) -> tuple[Arcs, int]:
    """Which line follows which in the files of a folder while it runs, and how many lines are run."""
    arcs: set[tuple[str, int, int]] = set()
    last: dict[int, int] = {}
    count = 0

    def local(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            arcs.add((frame.f_code.co_filename, last.get(id(frame), 0), frame.f_lineno))
            last[id(frame)] = frame.f_lineno
        elif event == "return":
            last.pop(id(frame), None)
        return local

    def called(frame: FrameType, event: str, arg: object) -> Any:
        return local if frame.f_code.co_filename.startswith(within) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        run()
    finally:
        sys.settrace(before)
    return frozenset(arcs), count


def fewest(reached: dict[bytes, Arcs], always: Iterable[bytes] = ()) -> list[bytes]:
    """Few inputs, small ones first, that reach everything that all of them reach."""
    kept = list(always)
    known = {arc for data in kept for arc in reached[data]}
    for data in sorted(reached, key=lambda data: (len(data), data)):
        if data not in kept and not reached[data] <= known:
            kept.append(data)
            known |= reached[data]
    counts: dict[tuple[str, int, int], int] = {}
    for data in kept:
        for arc in reached[data]:
            counts[arc] = counts.get(arc, 0) + 1
    must = set(always)
    for data in sorted(kept, key=len, reverse=True):  # a later input may reach all that an earlier one does
        if data not in must and all(counts[arc] > 1 for arc in reached[data]):
            kept.remove(data)
            for arc in reached[data]:
                counts[arc] -= 1
    return kept


def keep(folder: Path, names: list[str]) -> list[str]:
    """Replace the kept inputs of targets by the fewest of them, of the seeds and of FOLDER/TARGET that reach as much;
    returns a line for each target."""
    from tests.fuzz.runs import name_of
    from tests.fuzz.target import CORPUS

    said = []
    for target in _targets(names):
        inputs = _inputs(target, folder)
        for data in target.seeds():
            if len(data) <= target.largest:
                inputs.setdefault(data, name_of(data))
        reached: dict[bytes, Arcs] = {}
        with tempfile.TemporaryDirectory() as work:
            for data in list(inputs)[:1]:  # work that is done once belongs to no input
                target.check(Path(work), data)
            for data in inputs:
                reached[data], _ = traced(partial(target.check, Path(work), data))
        kept = fewest(reached, [data for data, name in inputs.items() if name.startswith(FOUND)])
        home = CORPUS / target.name
        home.mkdir(parents=True, exist_ok=True)
        for path in target.kept:
            path.unlink()
        for data in kept:
            (home / inputs[data]).write_bytes(data)
        said.append(f"{target.name}: {len(kept)} of {len(inputs)} inputs kept, {sum(map(len, kept)):,} bytes")
    return said


if __name__ == "__main__":
    if sys.argv[1] == "report":
        json.dump(report(Path(sys.argv[2]), sys.argv[3:]), sys.stdout)
    else:
        print("\n".join(keep(Path(sys.argv[2]), sys.argv[3:])))
