"""A scan finds faults of a tensor, and a wrong decoder."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.audit import content
from gguf_verify.formats.block import BlockFormat, decodes_rightly
from gguf_verify.formats.tensor_types import FORMATS, decode_elements
from gguf_verify.gguf.model import open_model
from gguf_verify.llama.library import Llama
from gguf_verify.report.writer import Kind
from gguf_verify.support.array_types import Floats
from gguf_verify.support.paths import kernel_root
from tests.support.audits import TINY, Bytes, bytes_rung, halves, ids, one_tensor, rule, run, scanned
from tests.support.shown import json_of, text_of
from tests.support.tools import LEGACY, ROOT, patched, patched_block, write_model


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def altered_kernels(monkeypatch: pytest.MonkeyPatch, folder: Path, file: str, old: str, new: str) -> None:
    """Scan with a copy of the kernels in which `old` reads `new`."""
    root = folder / "kernels"
    shutil.copytree(kernel_root(), root)
    source = (root / file).read_text()
    assert old in source, f"{file} no longer holds what this test alters"
    (root / file).write_text(source.replace(old, new))
    monkeypatch.setattr(content, "kernel_root", lambda: root)


WRONG_DECODES = {
    "Q4_0": ("q4_0.cuh", "(float)(q - 8)", "(float)(q - 7)"),
    "Q4_1": ("q4_1.cuh", "__fadd_rn(__fmul_rn((float)q, d), m)", "__fadd_rn(__fmul_rn((float)q, d), -m)"),
    "Q5_0": ("q5_0.cuh", "(high >> (j + 16) & 1)", "(high >> (j + 15) & 1)"),
    "Q5_1": ("q5_1.cuh", "(high >> j & 1)", "(high >> 2 * j & 1)"),
    "Q8_0": ("q8_0.cuh", "q[i] = qs[i];", "q[i] = (uint8_t)qs[i] & 0x7F;"),
}


@pytest.mark.parametrize("name", WRONG_DECODES)
def test_a_wrong_decode_is_found(
    name: str, llama: Llama, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, old, new = WRONG_DECODES[name]
    altered_kernels(monkeypatch, tmp_path, f"formats/{file}", old, new)
    fmt = FORMATS[name]
    blocks = fmt.encode(rng.standard_normal((640, 32), np.float32))
    path = one_tensor(tmp_path / "m.gguf", blocks.reshape(20, -1), name)
    assert scanned(path, llama).differing > 600
    result = run(path)
    assert rule("decode-differs") in ids(result)
    assert result.exit_code == 1


def test_a_wrong_header_is_the_projects_own_fault(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the Python decoder agrees with llama.cpp, the header of the project is at fault, and not llama.cpp."""
    altered_kernels(monkeypatch, tmp_path, "formats/q4_0.cuh", "(float)(q - 8)", "(float)(q - 7)")
    blocks = FORMATS["Q4_0"].encode(rng.standard_normal((64, 32), np.float32))
    report = bytes_rung(one_tensor(tmp_path / "m.gguf", blocks.reshape(2, -1), "Q4_0"))
    assert list(report.culprits) == ["verifier"]
    assert "gguf-verify itself" in report.at_fault
    assert "the header in kernels/formats" in report.failures[0][1].what


@pytest.mark.parametrize("name", FORMATS)
def test_each_decoder_is_checked_by_a_second_one(name: str, rng: np.random.Generator) -> None:
    fmt = FORMATS[name]
    blocks = rng.integers(0, 256, (16, fmt.block_bytes)).astype(np.uint8)
    assert decodes_rightly(fmt, blocks)
    wrong = dataclasses.replace(fmt, read_codes=lambda structs: np.flip(fmt.read_codes(structs), axis=-1))
    assert not decodes_rightly(wrong, blocks)


def test_one_block_that_decodes_otherwise(
    llama: Llama, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block that differs is counted and named; blocks of zeros do not tell the decodes apart."""
    blocks = np.zeros((8, 18), np.uint8)
    blocks[5] = FORMATS["Q4_0"].encode(np.linspace(-1, 1, 32, dtype=np.float32)[None])[0]
    path = one_tensor(tmp_path / "m.gguf", blocks.reshape(4, -1), "Q4_0")
    altered_kernels(monkeypatch, tmp_path, "formats/q4_0.cuh", "(float)(q - 8)", "(float)(q - 9)")
    (found,) = [f for f in run(path, readers=False).findings if f.id == rule("decode-differs")]
    with open_model(path) as model:
        assert found.start == model.tensors["w"].block_offset(2, 1)
    assert "1 block of 'w' (Q4_0)" in found.found
    assert "row 2 block 1" in found.found


def three_tensors_of_two_types(path: Path, rng: np.random.Generator) -> tuple[Path, Bytes]:
    """Q4_0, Q8_0, elements and Q4_0; the last one's blocks, of which 9 is the only one with a byte 0xEE."""
    a, c = (FORMATS["Q4_0"].encode(rng.uniform(-1, 1, (40, 32)).astype(np.float32)) for _ in range(2))
    a[a == 0xEE] = c[c == 0xEE] = 0xEF
    c[9, 5] = 0xEE
    b = FORMATS["Q8_0"].encode(rng.uniform(-1, 1, (24, 32)).astype(np.float32))
    b[b == 0xEE] = 0xEF
    rows = {"a": (a.reshape(4, -1), "Q4_0"), "b": (b.reshape(4, -1), "Q8_0")}
    rows |= {f"of a first message {i}": (np.ones((2, 32), np.float32), "F32") for i in range(16)}
    return write_model(path, {**rows, "c": (c.reshape(4, -1), "Q4_0")}), c


def test_the_description_is_held_against_each_tensor(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The random blocks of several tensors are decoded at once: a difference belongs to the right one."""
    path, blocks = three_tensors_of_two_types(tmp_path / "m.gguf", rng)
    whole = BlockFormat.decode

    def wrong(self: BlockFormat, blocks: Bytes) -> Floats:
        values = whole(self, blocks)
        values[(blocks == 0xEE).any(axis=-1), 7] += 1
        return values

    monkeypatch.setattr(BlockFormat, "decode", wrong)
    contents = {c.tensor.name: c for c in run(path, readers=False).contents}
    assert {name: c.described for name, c in contents.items() if c.described} == {"c": (9,)}
    (bad,) = contents["c"].bad[1]
    value = float(whole(FORMATS["Q4_0"], blocks[9])[7])
    assert (bad.row, bad.block, bad.expected) == (0, 9, value)
    assert bad.got == pytest.approx(value + 1)


def test_llamas_values_belong_to_the_block(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of blocks that differ in more than one tensor."""
    path, blocks = three_tensors_of_two_types(tmp_path / "m.gguf", rng)
    altered_kernels(monkeypatch, tmp_path, "formats/q4_0.cuh", "(float)(q - 8)", "(float)(q - 7)")
    whole = BlockFormat.decode
    # as the kernels do: else there is no value to name, since the description is right
    monkeypatch.setattr(BlockFormat, "decode", lambda self, blocks: whole(self, blocks) + self.scales(blocks))
    contents = {c.tensor.name: c for c in run(path, readers=False).contents}
    assert contents["a"].n_differing == contents["c"].n_differing == 40
    bad = contents["c"].bad[1]
    assert [(b.row, b.block) for b in bad] == [divmod(i, 10) for i in range(len(bad))]
    assert [b.expected for b in bad] == whole(FORMATS["Q4_0"], blocks[: len(bad)])[:, 0].tolist()


@pytest.mark.parametrize(("at", "value", "slug"), [
    (0, b"\x00\x7c", "scale-not-finite"), (0, b"\xff\x7f", "scale-not-finite"), (0, b"\x00\xfc", "scale-not-finite"),
    (2, b"\x00\x7e", "scale-not-finite"), (0, b"\x01\x00", "scale-subnormal"),
])  # fmt: skip
def test_scales_that_are_findings(at: int, value: bytes, slug: str, tmp_path: Path) -> None:
    path = patched_block(TINY["Q5_1"], tmp_path / "m.gguf", "blk.1.ffn_up.weight", 7, 3, at, value)
    result = run(path, readers=False)
    (found,) = result.findings
    assert found.id == rule(slug)
    with open_model(path) as model:
        offset = model.tensors["blk.1.ffn_up.weight"].block_offset(7, 3)
    assert (found.start, found.stop) == (offset, offset + 24)
    assert found.owner == "blk.1.ffn_up.weight"
    assert result.exit_code == (1 if slug == "scale-not-finite" else 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_elements_that_are_findings(value: float, tmp_path: Path) -> None:
    with open_model(TINY["Q4_0"]) as model:
        tensor = model.tensors["blk.1.attn_norm.weight"]
        offset = tensor.offset + 4 * 100
    path = patched(TINY["Q4_0"], tmp_path / "m.gguf", offset, np.float32(value).tobytes())
    (found,) = run(path, readers=False).findings
    assert (found.id, found.start, found.stop) == (rule("value-not-finite"), offset, offset + 4)
    assert "row 0 element 100" in found.found


def test_a_wrong_first_value_is_found(
    llama: Llama, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value of a block counts, not the last one alone."""
    old = "for (int j = 0; j < 16; ++j) q[j + 16] = qs[j] >> 4;"
    altered_kernels(monkeypatch, tmp_path, "formats/q4_0.cuh", old, old + " q[0] ^= 1;")
    blocks = FORMATS["Q4_0"].encode(rng.standard_normal((640, 32), np.float32))
    path = one_tensor(tmp_path / "m.gguf", blocks.reshape(20, -1), "Q4_0")
    scan = scanned(path, llama)
    assert (scan.differing, scan.first_differing) == (640, list(range(21)))
    (found,) = run(path, readers=False).findings
    assert found.found.startswith("640 blocks of 'w' (Q4_0) decode differently, first row 0 block 0")


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q2_K", "TQ2_0"])
def test_a_code_that_no_block_can_hold(
    name: str, llama: Llama, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for the one that has the same low bits, though all others are right."""
    file = f"formats/{name.lower()}.cuh"
    fmt = FORMATS[name]
    old = "    __device__ void unpack(int s, int8_t* q) const {"
    if old not in (kernel_root() / file).read_text():
        old = "    __device__ void unpack(int, int8_t* q) const {"
    inner = old.replace("unpack", "all_but_one")
    wrong = f"{old.replace('(int,', '(int s,')} all_but_one(s, q); q[31] += {1 << fmt.bits}; }}\n{inner}"
    altered_kernels(monkeypatch, tmp_path, file, old, wrong)
    values = rng.standard_normal((640, fmt.block_size), np.float32)
    rows = llama.quantize(fmt.type_id, values, np.ones(fmt.block_size, np.float32)).reshape(20, -1)
    assert scanned(one_tensor(tmp_path / "m.gguf", rows, name), llama).differing == 640


def test_elements_that_decode_otherwise(llama: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number, a number for a NaN, and a NaN for a number all differ; a NaN for another NaN does not."""
    one, two, nan, other_nan = 0x3C00, 0x4000, 0x7E00, 0x7E01
    wrong = f"bits == {one} ? {one + 1} : bits == {nan} ? {one} : bits == {two} ? {nan} : bits"
    wrong += f" == {other_nan} ? {nan} : bits"
    altered_kernels(
        monkeypatch, tmp_path, "formats/f16.cuh", "return half_to_float(bits)", f"return half_to_float({wrong})"
    )
    elements = np.full(3000, 0x4200, np.uint16)
    elements[[100, 1500, 1501, 2999]] = one, nan, other_nan, two
    path = one_tensor(tmp_path / "m.gguf", elements.view(np.uint8).reshape(3, -1), "F16")
    scan = scanned(path, llama)
    assert (scan.differing, scan.first_differing) == (3, [100, 1500, 2999])
    result = run(path, readers=False)
    assert rule("decode-differs") in ids(result)
    assert "3 values of 'w' (F16) decode differently, first row 0 element 100" in result.findings[0].found


@pytest.mark.parametrize(("kind", "subnormal"), [("F16", b"\x01\x00"), ("BF16", b"\x01\x00"), ("F32", b"\1\0\0\0")])
def test_subnormal_elements(kind: str, subnormal: bytes, llama: Llama, tmp_path: Path) -> None:
    """The first one is named, and the largest value stays."""
    size = len(subnormal)
    whole = np.arange(1, 3001, dtype=np.float32)
    whole[1100] = -4096
    raw = {"F16": whole.astype("<f2"), "BF16": (whole.view(np.uint32) >> 16).astype("<u2"), "F32": whole}[kind]
    data = raw.view(np.uint8).reshape(-1, size).copy()
    data[[1030, 1500, 2500]] = np.frombuffer(subnormal, np.uint8)
    scan = scanned(one_tensor(tmp_path / "m.gguf", data.reshape(3, -1), kind), llama)
    values = np.abs(decode_elements(kind, data.reshape(-1)))
    assert (scan.subnormal_scales, scan.first_subnormal) == (3, 1030)
    assert scan.scale == [values.min(), 4096]
    assert (scan.not_finite, scan.differing) == (0, 0)


def test_the_lowest_pair_of_equal_rows(llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    rows = rng.integers(0, 120, (64, 180), np.uint8)
    of = rng.permutation(32)
    rows[32:] = rows[of]
    scan = scanned(one_tensor(tmp_path / "m.gguf", rows, "Q4_0"), llama)
    assert (scan.duplicate_rows, scan.duplicate) == (32, [32, of[0]])


def scanned_apart(folder: Path, rows: Bytes, script: str) -> Any:
    """Scan rows of Q4_0 in a process of its own, which loads llama.cpp as the worker does, so that the script can lower
    the limits of scans; returns what the script prints."""
    rows.tofile(folder / "rows")
    with open_model(one_tensor(folder / "m.gguf", rows, "Q4_0")) as model:
        (folder / "scanner").write_bytes(content.scanner(model.tensors["w"].type))
    loads = (
        "import json, os, sys; from gguf_verify.llama import ggml\n"
        "from gguf_verify.llama.worker import file_scan, tensor_scan\n"
        "ggml.ggml_cpu_init()\n"
        "library, now = open(sys.argv[2], 'rb').read(), os.stat(sys.argv[1])\n"
        "identity = [now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns]\n"
    )
    command = [sys.executable, "-c", loads + script, str(folder / "rows"), str(folder / "scanner")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_too_many_rows_to_tell_equal_ones(rng: np.random.Generator, tmp_path: Path) -> None:
    rows = rng.integers(0, 120, (8, 180), np.uint8)
    rows[3] = rows[1]
    script = (
        "tensor_scan.MAX_HASHED_ROWS, scanner = 4, file_scan.FileScanner(print)\n"
        "part = lambda n: scanner.part_of(sys.argv[1], identity, 0, n * 180)\n"
        "kind = tensor_scan.Kind(2, 18, 32, library)\n"
        "scan = lambda n: next(scanner.scans([tensor_scan.Job(part(n), kind, 180)], 1))[0]\n"
        "print(json.dumps([[f[k] for k in ('blocks', 'duplicate_rows', 'duplicate')] for f in (scan(4), scan(5))]))"
    )
    assert scanned_apart(tmp_path, rows, script) == [[40, 1, [3, 1]], [50, None, None]]


def test_long_rows_are_read_in_pieces(rng: np.random.Generator, tmp_path: Path) -> None:
    """The same figures, and no buffer as long as a row."""
    rows = rng.integers(0, 120, (8, 180), np.uint8)
    rows[5] = rows[2]
    script = (
        "tensor_scan._CHUNK_BYTES = 36\n"
        "def scan(longest):\n"
        "    tensor_scan.LONG_ROW, scanner = longest, file_scan.FileScanner(print)\n"
        "    part = scanner.part_of(sys.argv[1], identity, 0, 8 * 180)\n"
        "    sizes, buffer = [], scanner._buffer\n"
        "    scanner._buffer = lambda size: (sizes.append(size), buffer(size))[1]\n"
        "    kind = tensor_scan.Kind(2, 18, 32, library)\n"
        "    return next(scanner.scans([tensor_scan.Job(part, kind, 180)], 1))[0], max(sizes)\n"
        "print(json.dumps([scan(180), scan(179)]))"
    )
    (whole, row), (pieces, piece) = scanned_apart(tmp_path, rows, script)
    assert whole == pieces
    assert (whole["blocks"], whole["duplicate_rows"], whole["duplicate"]) == (80, 1, [5, 2])
    assert (row, piece) == (180, 36)


def test_pieces_of_tensors_add_up(rng: np.random.Generator, tmp_path: Path) -> None:
    """On one thread and on three."""
    sizes, rows = (41, 7, 1), rng.integers(0, 120, (49, 180), np.uint8)
    rows[30], rows[44] = rows[3], rows[42]  # equal rows in pieces far apart
    rows[[9, 25], 18:20] = 0x00, 0x7C  # an infinite scale in two of them
    script = (
        "tensor_scan._CHUNK_BYTES, tensor_scan._SHARE_BYTES = 180, 360\n"
        "def scan(threads, whole):\n"
        "    tensor_scan._SHARE_BYTES, told = 1 << 20 if whole else 360, []\n"
        "    file_scan._TELL_BYTES, scanner, start, jobs = 1, file_scan.FileScanner(told.append), 0, []\n"
        f"    for n in {sizes}:\n"
        "        part = scanner.part_of(sys.argv[1], identity, 180 * start, 180 * n)\n"
        "        jobs.append(tensor_scan.Job(part, tensor_scan.Kind(2, 18, 32, library, [(1, 0, 0)], 4), 180))\n"
        "        start += n\n"
        "    return [[f, [a.tolist() for a in arrays]] for f, arrays in scanner.scans(jobs, threads)], told\n"
        "print(json.dumps([scan(1, True), scan(2, True), scan(3, False)]))"
    )
    (one, _), (two, _), (pieces, told) = scanned_apart(tmp_path, rows, script)
    assert len(told) == 14 + 4 + 1  # of three rows, two, and one
    assert sum(told) == rows.nbytes
    assert one == two == pieces
    first, second, third = (figures for figures, _ in pieces)
    assert [f["blocks"] for f in (first, second, third)] == [410, 70, 10]
    assert (first["not_finite"], first["first_not_finite"]) == (2, [91, 251])
    assert (first["duplicate_rows"], first["duplicate"]) == (1, [30, 3])
    assert (second["duplicate_rows"], second["duplicate"]) == (1, [3, 1])
    assert (third["duplicate_rows"], third["duplicate"]) == (0, None)
    codes = np.sum([arrays[0] for _, arrays in pieces], axis=0)
    nibbles = rows.reshape(-1, 18)[:, 2:]
    assert codes[:16].tolist() == [int((nibbles % 16 == c).sum() + (nibbles // 16 == c).sum()) for c in range(16)]
    drawn = [number * 409 // 3 for number in range(4)]
    assert pieces[0][1][1] == rows.reshape(-1, 18)[drawn].tolist()


def test_one_path_two_files(llama: Llama, tmp_path: Path) -> None:
    """A process that has mapped a file looks at the one that took its place."""
    good, bad = np.zeros((2, 18), np.uint8), np.zeros((2, 18), np.uint8)
    bad[1, :2] = (0x00, 0x7C)
    path = one_tensor(tmp_path / "m.gguf", good, "Q4_0")
    assert scanned(path, llama).not_finite == 0
    one_tensor(tmp_path / "other.gguf", bad, "Q4_0").replace(path)
    assert scanned(path, llama).first_not_finite == [1]


SIGNALLING, INFINITE = (0x7C01, 0xFD55), 0x7C00


@pytest.mark.parametrize("fmt", LEGACY.values(), ids=list(LEGACY))
def test_no_warning_of_numpys(fmt: BlockFormat, tmp_path: Path, rng: np.random.Generator) -> None:
    blocks = fmt.encode(rng.standard_normal((8, 32), np.float32))
    for i, half in enumerate((*SIGNALLING, INFINITE, INFINITE | 0x8000)):
        blocks[2 * i, :2] = halves(half)
        if fmt.has_min:
            blocks[2 * i + 1, 2:4] = halves(half)
    path = one_tensor(tmp_path / "m.gguf", blocks.reshape(4, -1), fmt.name)
    source = write_model(tmp_path / "s.gguf", {"w": (np.ones((4, 64), np.float32), "F32")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(path, readers=False, source=source)
        text_of(Kind.AUDIT, result, detail=2)
        json_of(Kind.AUDIT, result)
        report = bytes_rung(path)
    bad = 8 if fmt.has_min else 4
    assert result.contents[0].scan is not None
    assert result.contents[0].scan.not_finite == report.rungs[0].n_failures == bad
    assert ids(result)[0] == rule("scale-not-finite")
    assert any(id.startswith("GGUF-12") for id in ids(result)[1:])


def test_findings_are_capped(tmp_path: Path) -> None:
    nan = np.full((1, 32), np.nan, np.float32)
    path = write_model(tmp_path / "m.gguf", {f"t{i}": (nan, "F32") for i in range(200)})
    result = run(path, readers=False)
    found = [f for f in result.findings if f.id == rule("value-not-finite")]
    assert len(found) == 20
    assert [f.found.endswith(" (and 180 more of this kind)") for f in found] == [False] * 19 + [True]
    assert len(json_of(Kind.AUDIT, result)["findings"]) == len(result.findings) == 20
