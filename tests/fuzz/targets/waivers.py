"""A file of waivers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

from gguf_verify.support.errors import UsageError
from gguf_verify.waivers import REFERENCE, apply, read_waivers
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.nights import gemm_names, run_result
from tests.support.refusals import refused_in_one_line

NAMES = gemm_names(2)


def seeds() -> Iterator[bytes]:
    """The reference, files with one mistake each, and texts that are no TOML."""
    yield REFERENCE.encode()
    entry = '[[waiver]]\ntensor = "blk.0.*"\nreason = "issue 42"\nuntil = 2999-01-31\n'
    yield entry.encode()
    for change in (
        ("reason", "because"), ("2999-01-31", '"2999-01-31"'), ("2999-01-31", "2999-01-31T00:00:00Z"), ("blk.0.*", " "),
        ("tensor", "model"), ("tensor", "finding"), ("[[waiver]]", "[waiver]"), ("[[waiver]]", "[[waivers]]"),
        ('"blk.0.*"', "7"), ("2999-01-31", "2000-01-31"), ("blk.0.*", "[!"), ("blk.0.*", "*" * 40 + "x"),
        ("issue 42", "\\u001b[31m"),
    ):  # fmt: skip
        yield entry.replace(*change).encode()
    yield b"waiver = " + b"[" * 5000
    yield b"x = " + b"1" * 5000
    yield b"\xff"
    yield b""
    yield entry.encode() + b'finding = "GGUF-107"\nkernel = "q8_1"\n'
    yield b"waiver = [1]"
    yield entry.encode() + b"fault = \"code-order\"\nrung = 'layers'\nmodel = 'tiny*'\n"


def check(folder: Path, data: bytes) -> None:
    """A waiver has a scope; only one that has not expired covers failures of a run, and it changes nothing else."""
    path = folder / "waivers.toml"
    path.write_bytes(data)
    with refused_in_one_line(UsageError):
        found = read_waivers(path)
        day = date(2026, 1, 1)
        for waiver in found:
            assert waiver.reason.strip()
            assert waiver.words
            assert waiver.finding or waiver.tensor or waiver.rung
        report = run_result(NAMES, NAMES[0])
        report = apply(report, found, day)
        for rung in report.rungs:
            assert all(0 < n <= rung.failing[tensor] for tensor, n in rung.waived.items())
            assert not rung.waived or any(not waiver.expired(day) for waiver in found)
        assert report.exit_code in (0, 1)


TARGET = Target(
    "waivers", "a file of waivers", seeds, check,
    mutations.of_lines(
        ("[[waiver]]", "tensor", "model", "rung", "fault", "finding", "until", "reason", "=", '"', "'''", '"""', "[",
         "{", "2026-01-31", "1979-05-27T07:32:00", "inf", "nan", "0x", "true", "\\u", "#", "*" * 64, "[!a-"),
    ),
    inputs=350, covered=("gguf_verify.support.toml",),
)  # fmt: skip
