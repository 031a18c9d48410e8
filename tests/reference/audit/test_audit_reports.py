"""The printed report of an audit, and its JSON."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict

from gguf_verify.audit import content
from gguf_verify.gguf.model import open_model
from gguf_verify.llama.library import Llama
from gguf_verify.report import json as as_json
from gguf_verify.report.writer import Kind
from gguf_verify.support.errors import EnvironmentFault
from tests.support.audits import TINY, dies_at_scan, halves, rule, run
from tests.support.shown import json_of, text_of
from tests.support.tools import patched_block, write_model


def three_tensors(path: Path) -> Path:
    """Of each figure in the table of statistics, one that no other place in the file gives."""
    a = np.zeros((2, 2, 18), np.uint8)
    for block, d, codes in (
        (a[0, 0], 0x3C00, 0x00),
        (a[0, 1], 0xB800, 0x8F),
        (a[1, 0], 0, 0x33),
        (a[1, 1], 0x4500, 0x88),
    ):
        block[:2], block[2:] = halves(d), codes
    b = np.zeros((3, 20), np.uint8)
    for block, d, m, codes in (
        (b[0], 0x3400, 0xC200, 0xF0),
        (b[1], 0x3400, 0xC200, 0xF0),
        (b[2], 0x3800, 0x3C00, 0x57),
    ):
        block[:2], block[2:4], block[4:] = halves(d), halves(m), codes
    c = np.full((1, 18), 0x77, np.uint8)
    c[0, :2] = halves(0x3000)
    return write_model(path, {"a": (a.reshape(2, -1), "Q4_0"), "b": (b, "Q4_1"), "c": (c, "Q4_0")})


def test_the_figures_of_a_crafted_model(tmp_path: Path) -> None:
    """|d| 0.125 to 5; a block with d = 0 and one of codes 8 are zeros; 32 + 16 of 160 codes are 0 or 15."""
    text = text_of(Kind.AUDIT, run(three_tensors(tmp_path / "m.gguf"), readers=False))
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if re.match(r"Q4_[01] +[0-9]", line)}
    assert rows == {
        "Q4_0": ["2", "5", "2", "0.125", "5", "-", "-", "30.0%", "0"],
        "Q4_1": ["1", "3", "0", "0.25", "0.5", "-3", "1", "66.7%", "1"],
    }


def test_one_of_three_tensors(tmp_path: Path) -> None:
    path = three_tensors(tmp_path / "m.gguf")
    text = text_of(Kind.AUDIT, run(path, tensor="^b$", readers=False))
    assert "1 of 3 checked" in text
    assert "CLEAN (1 of 3 tensors) in" in text
    assert "CLEAN in" in text_of(Kind.AUDIT, run(path, readers=False))


def test_the_map_prints_every_byte_once() -> None:
    result = run(TINY["Q4_0"], readers=False)
    lines = re.findall(r"^ +([0-9]+) +([0-9]+) +([0-9,]+)  ", text_of(Kind.AUDIT, result, byte_map=True), re.M)
    at = 0
    for start, stop, nbytes in lines:
        assert int(start) == at
        at = int(stop)
        assert at - int(start) == int(nbytes.replace(",", ""))
    assert at == TINY["Q4_0"].stat().st_size


def test_the_report_fits_in_100_columns() -> None:
    """Except for names, whose length is unlimited, and the list of what a system's sandbox lacks."""
    free = ("file  ", "CLEAN: ", "sandbox  ")
    for path in (TINY["Q4_0"], TINY["Q5_1"], TINY["F16"]):
        for line in text_of(Kind.AUDIT, run(path, readers=False), verbose=True).splitlines():
            assert len(re.sub(r"  \S+\.weight$", "", line)) <= 100 or line.startswith(free), line


def test_colour_only_on_request(tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    result = run(path, readers=False)
    assert "\x1b" not in text_of(Kind.AUDIT, result, verbose=True, byte_map=True)
    assert "\x1b[1;31merror" in text_of(Kind.AUDIT, result, colour=True)


def test_the_json_holds_the_documented_keys(tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    whole = json_of(Kind.AUDIT, run(path, source=TINY["F16"]))
    described = set(re.findall(r"\w+", as_json.of_audit.__doc__ or ""))
    assert set(whole) <= described | {"schema"}
    assert (whole["verdict"], whole["exit_code"]) == ("wrong", 1)
    assert {f["id"] for f in whole["findings"]} == {rule("scale-not-finite"), rule("source-differs")}
    assert sum(stop - start for start, stop, *_ in whole["files"][0]["byte_map"]) == path.stat().st_size
    statistics = {t["name"]: t["statistics"] for t in whole["tensors"]}
    assert statistics["blk.0.attn_q.weight"]["not_finite"] == 1
    assert sum(statistics["blk.0.attn_q.weight"]["codes"]) == 256 * 256
    assert whole["readers"][0][0]["reader"] == "gguf-py"
    assert len(whole["readers"][0][0]["tensors"]) == 30


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    x = np.full((2, 32), np.nan, np.float32)
    path = write_model(tmp_path / "m.gguf", {"\x1b[31mred\u202e": (x, "F32")})
    text = text_of(Kind.AUDIT, run(path), verbose=True, byte_map=True)
    assert text.replace("\n", "").isprintable()
    assert "\\x1b[31mred\\u202e" in text


def test_results_do_not_depend_on_threads(tmp_path: Path) -> None:
    """However the pieces of the tensors are spread, and in whatever order they are done."""
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    one, *others = (run(path, readers=False, threads=threads) for threads in (1, 2, 5))
    assert one.exit_code == 1
    for other in others:
        assert other.findings == one.findings
        assert [c.tensor.name for c in other.contents] == [c.tensor.name for c in one.contents]
        for theirs, ours in zip(other.contents, one.contents, strict=True):
            assert (theirs.scan is None) == (ours.scan is None)
            if theirs.scan and ours.scan:
                same = {**asdict(theirs.scan), "codes": theirs.scan.codes.tolist()}
                assert same == {**asdict(ours.scan), "codes": ours.scan.codes.tolist()}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_scanned_before_llama_died_is_kept(number: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_at_scan(monkeypatch, number)
    result = run(TINY["Q4_0"], readers=False, threads=threads)
    assert result.exit_code == 3
    assert "llama.cpp died in scan (SIGKILL)" in (result.fault or "")
    assert len(result.contents) == 16 * (number - 1)
    assert {why for _, why in result.unverified} == {"not reached"}
    assert len(result.contents) + len(result.unverified) == 30


def test_scans_left_in_the_middle_end_the_process(llama: Llama) -> None:
    """Its next message would be taken for the answer to another call."""
    with Llama() as other, open_model(TINY["Q4_0"]) as model:
        found = content.contents(list(model.tensors.values()), other)
        next(found)
        found.close()
        with pytest.raises(EnvironmentFault, match="died"):
            other.versions()
    assert llama.versions()
