"""A GGUF file: the parser, the layout of its data, the rules, and the check of the metadata's claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.records import capped
from gguf_verify.gguf.storage import Strings
from tests.fuzz import gguf_fields
from tests.fuzz.target import Target
from tests.support import corpus
from tests.support.invariants import check_file, check_model

#: The name that an input is saved under, by its length: the parser reads names, too.
NAMES = ("fuzzed.gguf", "tiny-Q8_0.gguf", "x-iq4_nl-F16.gguf", corpus.ONE)


def seeds() -> Iterator[bytes]:
    """The crafted files of the tests, files that are no GGUF files, and vocabularies, which are checked in pieces."""
    yield from (entry.build().data for entry in corpus.CORPUS)
    yield from (b"PK\x03\x04", b"\2\0\0\0\0\0\0\0{}", b"version https://git-lfs.github.com", b"\n<!DOCTYPE html>")
    for words in ([b"word"] * 70, [b"\xc3\xa9", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\xff", b"\xc3"] * 14):
        yield corpus.gguf([corpus.array("w", corpus.STRING, len(words), [*map(corpus.text, words)])]).data


def check(folder: Path, data: bytes) -> None:
    """Every byte has one owner, each finding is on one line, and a second reading gives the same."""
    path = folder / NAMES[len(data) % len(NAMES)]
    path.write_bytes(data)
    first, again = check_file(path), check_file(path)
    assert (first.findings, first.tensors) == (again.findings, again.tensors)
    assert list(first.byte_map) == list(again.byte_map)
    if first.refused is None:
        kinds = [r.kind for r in first.byte_map]
        assert (kinds.count("key"), kinds.count("tensor name")) == (len(first.metadata), len(first.tensors))
    check_model(path)
    with parse(path) as file:
        assert capped(f for f in file.findings for _ in range(2)) if file.findings else not capped(())
        for value in file.metadata.values():
            if isinstance(value, Strings):
                # Every way to read them gives the same.
                whole = list(value)
                assert len(whole) == len(value)
                assert value == whole
                assert value != [*whole, "x"]
                assert [value[i] for i in range(-len(whole), len(whole))] == whole * 2
                assert (value[1:-1], value[::2], value[:70]) == (whole[1:-1], whole[::2], whole[:70])
                for beyond in (len(whole), -len(whole) - 1):
                    try:
                        value[beyond]
                    except IndexError:
                        continue
                    raise AssertionError("an element past the end")


TARGET = Target(
    "gguf", "a GGUF file", seeds, check, gguf_fields.mutate, share=4, inputs=150, largest=1 << 16,
    covered=tuple(
        f"gguf_verify.gguf.{name}" for name in ("parser", "layout", "records", "storage", "consistency")
    ),
)  # fmt: skip
