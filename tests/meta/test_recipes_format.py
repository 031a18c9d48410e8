"""The recipe "add a format" of docs/extending.md: the two files of a format are removed and added again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.meta.test_recipes_one_file import ONE_MATRIX
from tests.support.project_copy import ProjectCopy
from tests.support.tools import FIXTURES, flat

FILES = ("harness/gguf_verify/formats/q5_1.py", "kernels/formats/q5_1.cuh")
RUN = (FIXTURES / "tiny-Q5_1.gguf", "--host", "cpu", "--rungs", "bytes,blocks,layers", *ONE_MATRIX)

#: Everything that lists formats, run inside the copy.
LISTS = """
import json
from gguf_verify.audit.fingerprint import patterns_of
from gguf_verify.diagnosis.faults import FAULTS
from gguf_verify.formats.tensor_types import FILE_TYPES, FORMATS, tensor_type
from gguf_verify.hosts.tables import headers
from gguf_verify.kernels.foreign.declaration import Declaration
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.support.errors import UsageError

def declared(name):
    try:
        return Declaration((name,), "q8_1").formats
    except UsageError as error:
        return str(error)

fifth = next(fault for fault in FAULTS if fault.id == "fifth-bits-interleaved")
print(json.dumps({
    "formats": list(FORMATS),
    "file types": list(FILE_TYPES),
    "covered": tensor_type(7).format is not None,
    "kernels": {k.name: [n for n, f in FORMATS.items() if k.covers(f)] for k in KERNELS.values()},
    "tables": sorted(headers()),
    "with fifth bits": [n for n, f in FORMATS.items() if f.has_fifth_bits],
    "half products": [n for n, f in FORMATS.items() if SEMANTICS["q8_1_half"].term.rounded(f) == "products"],
    "fingerprinted": [n for n, f in FORMATS.items() if patterns_of(f)],
    "declared": declared("Q5_1"),
}))
"""


def lists(copy: ProjectCopy) -> dict[str, Any]:
    done = copy.python("-c", LISTS)
    assert done.returncode == 0, done.stderr
    made = copy.python("docs/generate.py")
    assert made.returncode == 0, made.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"page": (copy.root / "docs" / "formats.md").read_text()}


def test_a_format_is_two_files(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    copy.also(
        "docs/generate.py",
        "docs/pictures.py",
        "tools",
        "docs/certificates.md",
        "docs/tutorials/kernel-author.md",
        "docs/benchmarks.md",
        "docs/backend-measurements.md",
        "docs/backends.json",
        "docs/backends.toml",
        "docs/museum.json",
        "tests/__init__.py",
        "tests/meta/__init__.py",
        "tests/meta/museum",
    )
    before = lists(copy)
    assert before["declared"] == ["Q5_1"]
    assert before["covered"] is True
    assert all("Q5_1" in of_kernel for of_kernel in before["kernels"].values())

    held = {path: copy.take_away(path) for path in FILES}
    without = lists(copy)
    assert "\n## Q5_1\n" in before["page"]
    assert "Q5_1" not in json.dumps({k: v for k, v in without.items() if k != "declared"})
    assert without["covered"] is False
    assert without["declared"].startswith("format 'Q5_1' is not one of Q4_0, Q4_1, Q5_0, Q8_0, ")
    for name, listed in before.items():
        if isinstance(listed, list) and "Q5_1" in listed and name != "declared":
            assert without[name] == [f for f in listed if f != "Q5_1"]
    run = copy.cli(*RUN)
    assert run.returncode == 5, run.stdout + run.stderr
    assert "type Q5_1 is not covered" in flat(run.stdout + run.stderr)

    for path, text in held.items():
        copy.add(path, text)
    assert lists(copy) == before
    run = copy.cli(*RUN)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "VERIFIED" in run.stdout
