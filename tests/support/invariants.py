"""What holds for every file, whatever its bytes; for the generated files of the tests and of `measure fuzz`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from gguf_verify.gguf import layout, parser
from gguf_verify.gguf.consistency import check_consistency
from gguf_verify.gguf.file import GgufFile
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.records import KINDS, MAX_PER_RULE, Finding
from gguf_verify.gguf.rules import RULES
from gguf_verify.gguf.storage import Budget, Strings
from gguf_verify.support.errors import HarnessError
from tests.support.work import steps

#: Lines of Python that a parse may run for each byte of its file (7 is the most that any kind of file takes), and for
#: itself.
STEPS_A_BYTE, STEPS = 9, 10_000
IDS = {rule.id: rule for rule in RULES.values()}
#: The errors that metadata can have which the parser accepts.
NO_MEANING = {RULES["key-not-finite"].id, RULES["key-range"].id}


def check_findings(findings: Sequence[Finding], size: int) -> None:
    for f in findings:
        assert f.effect == IDS[f.id].effect
        assert 0 <= f.start <= f.stop <= size, f
        for said in (f.line(), f.expected, f.found, f.why):
            assert said.isprintable(), f
            assert 0 < len(said) < 1000, f
    assert all(sum(f.id == id for f in findings) <= MAX_PER_RULE for id in IDS)


def check_map(file: GgufFile) -> None:
    end = 0
    for r in file.byte_map:
        assert r.start == end < r.stop, f"{r} does not follow byte {end}"
        assert r.kind in KINDS
        assert isinstance(r.note, str)
        end = r.stop
    assert end == file.size == sum(file.byte_map.sizes().values())
    assert not file.byte_map.breaks(file.size)
    assert (file.refused is not None) or "unread" not in {r.kind for r in file.byte_map}


def check_tensors(file: GgufFile) -> None:
    """Each in the file, each byte in one tensor, each of the size that its shape says."""
    end = 0
    for tensor in sorted(file.tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes <= file.size
        assert len(tensor.raw) == tensor.nbytes
        assert [r.kind for r in tensor.described] == ["tensor name", "dimensions", "type", "offset"]
        assert {r.owner for r in tensor.described} == {tensor.name}
        assert tensor.nbytes * tensor.type.block_size == tensor.k * tensor.n_rows * tensor.type.block_bytes
        if tensor.nbytes:
            assert file.refused is not None or tensor.offset >= end, f"{tensor} overlaps another"
            end = tensor.offset + tensor.nbytes


def plain(value: object) -> object:
    """A value in full, so that equal ones compare equal: a NaN too."""
    if isinstance(value, memoryview):
        return str(value, "utf-8", "surrogateescape")
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, (Strings, list)):
        items = [plain(item) for item in value]
        assert len(items) == len(value)
        return items
    return value if isinstance(value, str) else repr(value)


@contextmanager
def small_pieces() -> Iterator[None]:
    """What is read in pieces is read in so small ones that a small file has many."""
    with ExitStack() as undo:
        for module, name, size in (
            (parser, "PIECE", 16), (layout, "PIECE", 16), (parser, "JOINED", 256), (parser, "CHUNK", 64),
        ):  # fmt: skip
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, size)
        yield


def check_parsed(file: GgufFile) -> None:
    check_findings(file.findings, file.size)
    assert [f for f in file.findings if f.effect == "refuse"] == ([file.refused] if file.refused else [])
    check_map(file)
    check_tensors(file)
    assert list(file.metadata) == list(file.value_ranges)
    assert all(r.start <= r.stop <= file.size for r in file.value_ranges.values())


def check_file(path: Path) -> GgufFile:
    """Parses the file in three ways and asserts what holds for every file; it is closed when it comes back."""
    assert steps(lambda: parse(path).close()) < STEPS + STEPS_A_BYTE * path.stat().st_size
    with parse(path) as file:
        check_parsed(file)
        with small_pieces(), parse(path, 0, Budget(held=16)) as other:
            check_parsed(other)
            assert other.findings == file.findings
            assert list(other.byte_map) == list(file.byte_map)
            assert other.tensors == file.tensors
            # What is held says the same as what is read from the file, but for bools that are neither 0 nor 1.
            if RULES["bool-value"].id not in {f.id for f in file.findings}:
                assert all(plain(file.metadata[key]) == plain(other.metadata[key]) for key in file.metadata)
        with parse(path, 0, Budget(keys=3, tensors=2, key_bytes=40, nested=2, strings=5)) as tight:
            check_parsed(tight)
            assert len(tight.metadata) <= 3
            assert len(tight.tensors) <= 2
            assert sum(len(key.encode("utf-8", "surrogateescape")) for key in tight.metadata) <= 40
    for key in file.metadata:  # all of it is small enough to be held
        plain(file.metadata[key])
    return file


def check_model(path: Path) -> None:
    """Opening may refuse; nothing else may be raised."""

    def look() -> None:
        try:
            with open_model(path) as model:
                findings = check_consistency(model)
                check_findings(findings, max(part.size for part in model.parts))
                assert all(f.effect == "warning" or f.id in NO_MEANING for f in findings)
        except HarnessError as error:
            said = str(error)
            assert said.isprintable() and len(said) < 1500  # noqa: PT018 - whether it raises is left open

    size = sum(part.stat().st_size for part in path.parent.iterdir() if part.is_file())
    assert steps(look) < 10 * STEPS + STEPS_A_BYTE * size
