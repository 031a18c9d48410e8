"""A GGUF file: the parser, the layout of its data, the rules, and the check of the metadata's claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gguf_verify.gguf import parse
from tests.fuzz import gguf_fields
from tests.fuzz.target import Target
from tests.support import corpus
from tests.support.invariants import check_file, check_model
from tests.support.tools import FIXTURES

#: The name that an input is saved under, by its length: the parser reads names, too.
NAMES = ("fuzzed.gguf", "tiny-Q8_0.gguf", "x-iq4_nl-F16.gguf", corpus.ONE)


def seeds() -> Iterator[bytes]:
    """The crafted files of the tests, and the headers of the fixtures."""
    yield from (entry.build().data for entry in corpus.CORPUS)
    for path in sorted(FIXTURES.glob("*.gguf")):
        with parse(path) as file:
            yield file.buffer[: file.data_offset].tobytes()


def check(folder: Path, data: bytes) -> None:
    """Every byte has one owner, the findings are on one line, and what is read twice is read alike."""
    path = folder / NAMES[len(data) % len(NAMES)]
    path.write_bytes(data)
    first = check_file(path)
    again = check_file(path)
    assert (first.findings, list(first.byte_map), first.tensors) == (again.findings, list(again.byte_map), again.tensors)
    check_model(path)


TARGET = Target(
    "gguf", "a GGUF file", seeds, check, gguf_fields.mutate, share=4, inputs=500, largest=1 << 16,
    covered=tuple(
        f"gguf_verify.gguf.{name}" for name in ("parser", "layout", "records", "storage", "consistency", "file")
    ),
)  # fmt: skip
