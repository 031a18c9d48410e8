"""The audit: what a scan tallies against a slow recount, fingerprints, the source, verdicts and exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.audit import Audit, AuditOptions, Examination, audit, content
from gguf_verify.audit.fingerprint import IMPORTANCE, REFERENCE, fingerprint, rules_of
from gguf_verify.formats import ELEMENTS, FORMATS, BlockFormat, decode_elements, tensor_type
from gguf_verify.gguf import RULES, Model, Range, open_model
from gguf_verify.hosts import CpuHost, compiler
from gguf_verify.hosts.compiler import library_path
from gguf_verify.llama import Llama, LlamaRefused, Scan, ScannerOf
from gguf_verify.llama.files import FilePasses
from gguf_verify.report import audit_json, audit_text
from gguf_verify.results import Options
from gguf_verify.support import cache
from gguf_verify.support.errors import EnvironmentFault, MalformedFile, UsageError
from gguf_verify.support.paths import kernel_root
from gguf_verify.verification import Report, verify
from tests.support import corpus
from tests.support.needs import need
from tests.support.tools import FIXTURES, LEGACY, ROOT, patched, patched_block, split_model, write_model

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
TINY = {name: FIXTURES / f"tiny-{name}.gguf" for name in ("Q4_0", "Q5_1", "F16")}
QUIET = AuditOptions(progress=False, threads=2)


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def ids(result: Audit) -> list[str]:
    return [f.id for f in result.findings]


def rule(slug: str) -> str:
    return RULES[slug].id


def run(path: Path, **options: object) -> Audit:
    return audit(path, AuditOptions(**{"progress": False, "threads": 2, **options}))  # type: ignore[arg-type]


def one_tensor(path: Path, rows: Bytes, kind: str, name: str = "w") -> Path:
    """A file of one tensor, `rows` uint8[rows, row bytes]."""
    return write_model(path, {name: (rows, kind)})


def scanned(path: Path, llama: Llama, threads: int = 2) -> Scan:
    with open_model(path) as model:
        (found,) = content.contents(list(model.tensors.values()), llama, threads)
        assert found.scan is not None
        return found.scan


def bytes_rung(path: Path) -> Report:
    return verify(path, host=CpuHost(1), rungs=["bytes"], options=Options(progress=False, threads=2))


def altered_kernels(monkeypatch: pytest.MonkeyPatch, folder: Path, file: str, old: str, new: str) -> None:
    """Scan with a copy of the kernels in which `old` reads `new`; the text must be there once."""
    root = folder / "kernels"
    shutil.copytree(kernel_root(), root)
    source = (root / file).read_text()
    assert source.count(old) == 1, f"{file} no longer holds what this test alters"
    (root / file).write_text(source.replace(old, new))
    monkeypatch.setattr(content, "kernel_root", lambda: root)


def halves(*values: int) -> Bytes:
    """Bit patterns as bytes, little endian."""
    return np.array(values, "<u2").view(np.uint8)


def edge_blocks(fmt: BlockFormat, rng: np.random.Generator, n: int) -> Bytes:
    """Random bytes, and every bit pattern of a half as the scale; some rows of zeros and of equal bytes."""
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), np.uint8)
    halves = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    k = min(n, len(halves))
    blocks[:k, :2] = halves[:k]
    blocks[n - 8 :] = 0
    blocks[n - 16 : n - 8, fmt.field_offset("qs") :] = 0x88
    return blocks


# -- the scan against a slow recount ----------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", LEGACY.values(), ids=list(LEGACY))
def test_every_figure_of_a_scan(fmt: BlockFormat, llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    per_row, n_rows = 33, 2100  # no power of two, so that batches and chunks end within rows and tensors
    blocks = edge_blocks(fmt, rng, n_rows * per_row)
    blocks.reshape(n_rows, -1)[777] = blocks.reshape(n_rows, -1)[5]
    scan = scanned(one_tensor(tmp_path / "m.gguf", blocks.reshape(n_rows, -1), fmt.name), llama)

    with np.errstate(all="ignore"):
        d, m, values, q = fmt.scale(blocks), fmt.minimum(blocks), fmt.decode(blocks), fmt.codes(blocks).astype(int)
    bad = ~(np.isfinite(d) & np.isfinite(m))
    size = np.abs(d)
    normal = np.isfinite(d) & (size > 0)
    assert scan.blocks == len(blocks)
    assert scan.differing == 0
    assert scan.not_finite == bad.sum()
    assert scan.first_not_finite == np.flatnonzero(bad)[:21].tolist()
    assert scan.zero_scales == (d == 0).sum()
    assert scan.zero_blocks == (values == 0).all(axis=1).sum() >= 8
    assert scan.negative_scales == (d < 0).sum()
    subnormal = (size > 0) & (size < 2.0**-14)
    assert scan.subnormal_scales == subnormal.sum() > 0
    assert scan.first_subnormal == int(np.argmax(subnormal))
    assert scan.scale == [size[normal].min(), size[normal].max()]
    assert scan.minimum == ([m[np.isfinite(m)].min(), m[np.isfinite(m)].max()] if fmt.has_min else None)
    low = -128 if fmt.bits == 8 else 0
    assert scan.codes.tolist() == np.bincount((q - low).ravel(), minlength=256).tolist()
    rows = blocks.reshape(n_rows, -1)
    assert scan.duplicate_rows == n_rows - len(np.unique(rows, axis=0)) == 1
    assert scan.duplicate == [777, 5]
    for i, r in enumerate(rules_of(fmt)):
        assert scan.obeying[i] == sum(obeys(fmt, set(codes), r.masks) for codes in q[d != 0].tolist()), r


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.name not in LEGACY], ids=lambda f: f.name)
def test_a_scan_of_any_format(fmt: BlockFormat, llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    """What does not depend on how the scales are stored."""
    per_row, n_rows = 3, 700
    blocks = rng.integers(0, 256, (n_rows * per_row, fmt.block_bytes), np.uint8)
    blocks[100:140] = 0
    rows = blocks.reshape(n_rows, -1)
    rows[77] = rows[5]
    path = tmp_path / "m.gguf"
    described = corpus.info("w", [per_row * fmt.block_size, n_rows], fmt.type_id, 0)
    path.write_bytes(corpus.gguf([], [described], [rows.tobytes(), bytes(-rows.nbytes % 32)]).data)
    scan = scanned(path, llama)
    with np.errstate(all="ignore"):
        values, q, finite = fmt.decode(blocks), fmt.codes(blocks).astype(int), fmt.finite(blocks)
    assert (scan.blocks, scan.differing) == (len(blocks), 0)
    assert scan.zero_blocks == (values == 0).all(axis=1).sum()
    assert scan.codes.tolist() == np.bincount((q - fmt.low).ravel(), minlength=256).tolist()
    assert scan.not_finite == (~finite).sum()
    assert scan.first_not_finite == np.flatnonzero(~finite)[:21].tolist()
    assert scan.duplicate_rows == n_rows - len(np.unique(rows, axis=0))
    assert (scan.minimum is not None) == fmt.has_min


#: Codes of 4, 8, 5 + 1 and 6 bits, of a grid and of three values; `make test-all` has the rest.
ALIKE_OFTEN = ("Q4_0", "Q8_0", "Q5_1", "Q6_K", "IQ3_S", "TQ1_0")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *(pytest.param(f, "-mno-avx512f", marks=[pytest.mark.slow] * (f not in ALIKE_OFTEN)) for f in FORMATS),
        ("Q4_0", "-mno-avx"),
        ("Q8_0", "-mno-avx"),
    ],
)
def test_any_processor_scans_alike(
    name: str, option: str, llama: Llama, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a quantizer's and blocks of any bytes, by the best instructions of this machine and without them."""
    need("x86-64")
    fmt = FORMATS[name]
    per_row, n_rows = 5, 300
    values = rng.standard_normal((n_rows * per_row, fmt.block_size), np.float32)
    blocks = llama.quantize(fmt.type_id, values, np.ones(fmt.block_size, np.float32))
    blocks[-n_rows // 2 :] = rng.integers(0, 256, blocks[-n_rows // 2 :].shape, np.uint8)
    rows = blocks.reshape(n_rows, -1)
    path = tmp_path / "m.gguf"
    described = corpus.info("w", [per_row * fmt.block_size, n_rows], fmt.type_id, 0)
    path.write_bytes(corpus.gguf([], [described], [rows.tobytes(), bytes(-rows.nbytes % 32)]).data)
    best = asdict(scanned(path, llama))
    monkeypatch.setattr(compiler, "FLAGS", [*compiler.FLAGS, option])
    plain = asdict(scanned(path, llama))
    assert plain.pop("codes").tolist() == best.pop("codes").tolist()
    assert plain == best
    assert plain["blocks"] == len(blocks)


def obeys(fmt: BlockFormat, codes: set[int], masks: tuple[int, int, int]) -> bool:
    """A rule on the set of a block's codes, by the words of its documentation."""
    if fmt.bits == 8:
        codes = {{-128: 0, -127: 1, 127: 2}.get(c, 3) for c in codes}
    all_, any_, none = ({c for c in range(32) if mask >> c & 1} for mask in masks)
    return all_ <= codes and (not any_ or bool(any_ & codes)) and not none & codes


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_elements(kind: str, llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    size = 4 if kind == "F32" else 2
    raw = rng.integers(0, 256, (3000, 7 * size), np.uint8)
    scan = scanned(one_tensor(tmp_path / "m.gguf", raw, kind), llama)
    values = decode_elements(kind, raw.reshape(-1))
    magnitude = np.abs(values)
    bad = ~np.isfinite(values)
    smallest = 2.0**-14 if kind == "F16" else 2.0**-126
    assert (scan.blocks, scan.differing, scan.not_finite) == (values.size, 0, bad.sum())
    assert scan.first_not_finite == np.flatnonzero(bad)[:21].tolist()
    assert scan.zero_blocks == scan.zero_scales == (values == 0).sum()
    assert scan.subnormal_scales == ((magnitude > 0) & (magnitude < smallest)).sum()
    fit = magnitude[~bad & (magnitude > 0)]
    assert scan.scale == [fit.min(), fit.max()]
    assert scan.negative_scales == (values < 0).sum() - 0


def test_rules_on_signed_bytes(llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    """Each of the four things that a rule can ask of them."""
    rare = np.array([-128, -127, 127, -126, 126], np.int8)
    codes = np.where(rng.random((96, 32)) < 0.1, rng.choice(rare, (96, 32)), 0).astype(np.int8)
    codes[:64:2] = rng.choice(np.array([-128, -127, 127], np.int8), (32, 32))
    codes[0, 7], codes[2, 8] = -126, 126  # the only others in these
    blocks = np.concatenate([np.tile(halves(0x3C00), (96, 1)), codes.view(np.uint8)], axis=1)
    with open_model(one_tensor(tmp_path / "m.gguf", blocks.reshape(3, -1), "Q8_0")) as model:
        tensor = model.tensors["w"]
        rules = [(1 << bit, 0, 0) for bit in range(4)]
        of = {"Q8_0": ScannerOf(content.scanner(tensor.type), rules)}
        ((found,),) = llama.files.scans([tensor], of)
    named = [(codes == code).any(axis=1) for code in (-128, -127, 127)]
    other = (~np.isin(codes, (-128, -127, 127))).any(axis=1)
    assert found.scan.obeying == [int(held.sum()) for held in (*named, other)]


def test_zeros_have_no_scale(llama: Llama, tmp_path: Path) -> None:
    scan = scanned(one_tensor(tmp_path / "m.gguf", np.zeros((3, 4096), np.uint8), "F32"), llama)
    assert (scan.zero_blocks, scan.scale, scan.duplicate_rows) == (3 * 1024, None, 2)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("n_rows", "per_row"), [(1, 70001), (70001, 1), (3, 40000), (257, 129), (1, 1)])
def test_one_bad_block_wherever_it_is(
    n_rows: int, per_row: int, threads: int, llama: Llama, rng: np.random.Generator, tmp_path: Path
) -> None:
    total = n_rows * per_row
    blocks = FORMATS["Q4_0"].encode(rng.standard_normal((total, 32), np.float32))
    for number in {0, total // 2, total - 1}:
        bad = blocks.copy()
        bad[number, :2] = (0x00, 0x7C)
        scan = scanned(one_tensor(tmp_path / "m.gguf", bad.reshape(n_rows, -1), "Q4_0"), llama, threads)
        assert (scan.blocks, scan.not_finite, scan.first_not_finite) == (total, 1, [number])


def test_rows_that_hash_alike_are_compared(tmp_path: Path, llama: Llama, rng: np.random.Generator) -> None:
    """With a hash that always collides the count of equal rows is never too high."""
    source = kernel_root() / "emulator" / "scan.hpp"
    text = source.read_text()
    assert text.count("hashes[r] = scan::row_hash(rows + r * row_bytes, row_bytes)") == 1
    root = tmp_path / "kernels"
    shutil.copytree(kernel_root(), root)
    (root / "emulator" / "scan.hpp").write_text(
        text.replace("hashes[r] = scan::row_hash(rows + r * row_bytes, row_bytes)", "hashes[r] = 1")
    )
    rows = rng.integers(0, 120, (50, 180), np.uint8)
    rows[40] = rows[0]
    path = one_tensor(tmp_path / "m.gguf", rows, "Q4_0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "kernel_root", lambda: root)
        assert scanned(path, llama).duplicate_rows == 1


# -- the scan must find what is wrong ---------------------------------------------------------------------------

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
    root = tmp_path / "kernels"
    shutil.copytree(kernel_root(), root)
    source = (root / "formats" / file).read_text()
    assert old in source
    (root / "formats" / file).write_text(source.replace(old, new))
    monkeypatch.setattr(content, "kernel_root", lambda: root)
    fmt = FORMATS[name]
    blocks = fmt.encode(rng.standard_normal((640, 32), np.float32))
    path = one_tensor(tmp_path / "m.gguf", blocks.reshape(20, -1), name)
    assert scanned(path, llama).differing > 600
    result = run(path)
    assert rule("decode-differs") in ids(result)
    assert result.exit_code == 1


def test_one_block_that_decodes_otherwise(
    llama: Llama, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block that differs is counted and named; blocks of zeros do not tell the decodes apart."""
    blocks = np.zeros((8, 18), np.uint8)
    blocks[5] = FORMATS["Q4_0"].encode(np.linspace(-1, 1, 32, dtype=np.float32)[None])[0]
    path = one_tensor(tmp_path / "m.gguf", blocks.reshape(4, -1), "Q4_0")
    root = tmp_path / "kernels"
    shutil.copytree(kernel_root(), root)
    header = root / "formats" / "q4_0.cuh"
    header.write_text(header.read_text().replace("(float)(q - 8)", "(float)(q - 9)"))
    monkeypatch.setattr(content, "kernel_root", lambda: root)
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
    """The drawn blocks of several tensors are decoded at once: what differs belongs to the right one."""
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
    assert (bad.row, bad.block, bad.expected, bad.got) == (0, 9, value, pytest.approx(value + 1))


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
    assert found.found.startswith("640 blocks of 'w' (Q4_0) with another decode, first row 0 block 0")


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
    assert "3 values of 'w' (F16) with another decode, first row 0 element 100" in result.findings[0].found


@pytest.mark.parametrize(("kind", "subnormal"), [("F16", b"\x01\x00"), ("BF16", b"\x01\x00"), ("F32", b"\1\0\0\0")])
def test_subnormal_elements(kind: str, subnormal: bytes, llama: Llama, tmp_path: Path) -> None:
    """The first one is named, and the greatest value stays what it is."""
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


def test_too_many_rows_to_tell_equal_ones(rng: np.random.Generator, tmp_path: Path) -> None:
    """`MAX_HASHED_ROWS` is lowered in a process of its own, which loads llama.cpp as the worker does."""
    rows = rng.integers(0, 120, (8, 180), np.uint8)
    rows[3] = rows[1]
    rows.tofile(tmp_path / "rows")
    with open_model(one_tensor(tmp_path / "m.gguf", rows, "Q4_0")) as model:
        library = content.scanner(model.tensors["w"].type)
    script = (
        "import json, os, sys; from gguf_verify.llama import ggml; from gguf_verify.llama.worker import file_scan\n"
        "ggml.ggml_cpu_init(); file_scan.MAX_HASHED_ROWS = 4\n"
        "scanner, now = file_scan.FileScanner(print), os.stat(sys.argv[1])\n"
        "identity = [now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns]\n"
        "part = lambda n: scanner.part_of(sys.argv[1], identity, 0, n * 180)\n"
        "scan = lambda n: next(scanner.scans([file_scan.Job(part(n), 2, 18, 180, sys.argv[2])], 1))[0]\n"
        "print(json.dumps([[f[k] for k in ('blocks', 'duplicate_rows', 'duplicate')] for f in (scan(4), scan(5))]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "rows"), str(library)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[40, 1, [3, 1]], [50, None, None]]


def test_long_rows_are_read_in_pieces(rng: np.random.Generator, tmp_path: Path) -> None:
    """The same figures, and no buffer as long as a row. The limits are lowered in a process of its own."""
    rows = rng.integers(0, 120, (8, 180), np.uint8)
    rows[5] = rows[2]
    rows.tofile(tmp_path / "rows")
    with open_model(one_tensor(tmp_path / "m.gguf", rows, "Q4_0")) as model:
        library = content.scanner(model.tensors["w"].type)
    script = (
        "import json, os, sys; from gguf_verify.llama import ggml; from gguf_verify.llama.worker import file_scan\n"
        "ggml.ggml_cpu_init(); file_scan._CHUNK_BYTES = 36; now = os.stat(sys.argv[1])\n"
        "identity = [now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns]\n"
        "def scan(longest):\n"
        "    file_scan.LONG_ROW, scanner = longest, file_scan.FileScanner(print)\n"
        "    part = scanner.part_of(sys.argv[1], identity, 0, 8 * 180)\n"
        "    sizes, buffer = [], scanner._buffer\n"
        "    scanner._buffer = lambda size: (sizes.append(size), buffer(size))[1]\n"
        "    return next(scanner.scans([file_scan.Job(part, 2, 18, 180, sys.argv[2])], 1))[0], max(sizes)\n"
        "print(json.dumps([scan(180), scan(179)]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "rows"), str(library)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    (whole, row), (pieces, piece) = json.loads(done.stdout)
    assert whole == pieces
    assert (whole["blocks"], whole["duplicate_rows"], whole["duplicate"]) == (80, 1, [5, 2])
    assert (row, piece) == (180, 36)


def test_pieces_of_tensors_add_up(rng: np.random.Generator, tmp_path: Path) -> None:
    """On one thread and on three. The sizes are lowered in a process of its own."""
    sizes, rows = (41, 7, 1), rng.integers(0, 120, (49, 180), np.uint8)
    rows[30], rows[44] = rows[3], rows[42]  # equal rows in pieces far apart
    rows[[9, 25], 18:20] = 0x00, 0x7C  # an infinite scale in two of them
    rows.tofile(tmp_path / "rows")
    with open_model(one_tensor(tmp_path / "m.gguf", rows, "Q4_0")) as model:
        library = content.scanner(model.tensors["w"].type)
    script = (
        "import json, os, sys; from gguf_verify.llama import ggml; from gguf_verify.llama.worker import file_scan\n"
        "ggml.ggml_cpu_init(); file_scan._CHUNK_BYTES, file_scan._SHARE_BYTES = 180, 360; now = os.stat(sys.argv[1])\n"
        "identity = [now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns]\n"
        "def scan(threads, whole):\n"
        "    file_scan._SHARE_BYTES, told = 1 << 20 if whole else 360, []\n"
        "    file_scan._TELL_BYTES, scanner, start, jobs = 1, file_scan.FileScanner(told.append), 0, []\n"
        f"    for n in {sizes}:\n"
        "        part = scanner.part_of(sys.argv[1], identity, 180 * start, 180 * n)\n"
        "        jobs.append(file_scan.Job(part, 2, 18, 180, sys.argv[2], [(1, 0, 0)], 4))\n"
        "        start += n\n"
        "    return [[f, [a.tolist() for a in arrays]] for f, arrays in scanner.scans(jobs, threads)], told\n"
        "print(json.dumps([scan(1, True), scan(2, True), scan(3, False)]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "rows"), str(library)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    (one, _), (two, _), (pieces, told) = json.loads(done.stdout)
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
        audit_text.render(result, verbose=True)
        audit_json.render(result)
        report = bytes_rung(path)
    bad = 8 if fmt.has_min else 4
    assert result.contents[0].scan is not None
    assert result.contents[0].scan.not_finite == report.rungs[0].n_failures == bad
    assert ids(result) == [rule("scale-not-finite"), rule("source-differs")]


def test_findings_are_capped(tmp_path: Path) -> None:
    nan = np.full((1, 32), np.nan, np.float32)
    path = write_model(tmp_path / "m.gguf", {f"t{i}": (nan, "F32") for i in range(200)})
    result = run(path, readers=False)
    found = [f for f in result.findings if f.id == rule("value-not-finite")]
    assert len(found) == 20
    assert [f.found.endswith(" (and 180 more of this kind)") for f in found] == [False] * 19 + [True]
    assert len(json.loads(audit_json.render(result))["findings"]) == len(result.findings) == 20


# -- the fingerprint --------------------------------------------------------------------------------------------


def amax_over(fmt: BlockFormat, x: npt.NDArray[np.float32], steps: int) -> Bytes:
    """A quantizer such as people write: scale max|x|/steps, codes symmetric about the offset."""
    d = (np.abs(x).max(axis=1) / np.float32(steps)).astype(np.float16)
    inverse = np.where(d != 0, 1 / np.where(d != 0, d, 1).astype(np.float32), 0)
    q = np.round(x * inverse[:, None]).clip(-steps, min(steps, 127)).astype(int) + fmt.offset
    if fmt.bits == 8:
        return fmt.pack(d=d, qs=q.astype(np.int8))
    qs = ((q[:, :16] & 15) | (q[:, 16:] & 15) << 4).astype(np.uint8)
    if fmt.bits == 4:
        return fmt.pack(d=d, qs=qs)
    qh = np.packbits(((q >> 4) & 1).astype(np.uint8), axis=1, bitorder="little").view("<u4")[:, 0]
    return fmt.pack(d=d, qs=qs, qh=qh)


def consistent(fmt: BlockFormat, blocks: Bytes, llama: Llama, path: Path) -> tuple[str | None, dict[str, float]]:
    scan = scanned(one_tensor(path, blocks.reshape(64, -1), fmt.name), llama)
    print_ = fingerprint(fmt, [scan])
    assert print_.blocks == (fmt.scale(blocks) != 0).sum()
    shares = {r.producer: n / print_.blocks for r, n in print_.obeying}
    return (print_.consistent.producer if print_.consistent else None), shares


@pytest.mark.parametrize("fmt", LEGACY.values(), ids=list(LEGACY))
def test_producers_are_told_apart(fmt: BlockFormat, llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    x = rng.standard_normal((64, 2048), np.float32) * np.float32(0.02)
    x[3, :32] = 0
    path = tmp_path / "m.gguf"
    producer, shares = consistent(fmt, llama.quantize(fmt.type_id, x).reshape(-1, fmt.block_bytes), llama, path)
    assert (producer, shares[REFERENCE]) == (REFERENCE, 1)
    importance = np.exp(rng.standard_normal(2048)).astype(np.float32)
    weighted = llama.quantize(fmt.type_id, x, importance).reshape(-1, fmt.block_bytes)
    producer, shares = consistent(fmt, weighted, llama, path)
    if fmt.bits == 8:  # llama.cpp has no other way for Q8_0
        assert producer == REFERENCE
    else:
        assert producer == IMPORTANCE
        assert shares[REFERENCE] < 0.9
    if not fmt.has_min:
        steps = {4: 7, 5: 15, 8: 128}[fmt.bits]
        foreign = amax_over(fmt, x.reshape(-1, 32), steps)
        producer, shares = consistent(fmt, foreign, llama, path)
        assert producer is not None
        assert f"max|x|/{steps}" in producer
        assert shares[REFERENCE] < (0.6 if fmt.bits == 8 else 0.01)


def test_random_codes_have_no_producer(llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    blocks = rng.integers(0, 256, (6400, 18), np.uint8)
    blocks[:, 1] = 0x2C
    producer, shares = consistent(FORMATS["Q4_0"], blocks, llama, tmp_path / "m.gguf")
    assert producer is None
    assert 0 < shares[REFERENCE] < 1


def test_one_block_that_disobeys(llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    """All blocks or none: one of 6400 excludes a producer."""
    fmt = FORMATS["Q4_0"]
    blocks = llama.quantize(2, rng.standard_normal((64, 3200), np.float32)).reshape(-1, 18).copy()
    path = tmp_path / "m.gguf"
    assert consistent(fmt, blocks, llama, path)[0] == REFERENCE
    blocks[4321, 2:] = 0x77  # neither a lowest code nor a highest
    producer, shares = consistent(fmt, blocks, llama, path)
    assert producer is None
    assert shares[REFERENCE] == shares[IMPORTANCE] == 6399 / 6400
    text = audit_text.render(run(path, readers=False))
    assert "99.9844 % of 6,400" in text
    assert "no known rule holds throughout" in text


def test_zeros_have_no_producer(llama: Llama, tmp_path: Path) -> None:
    scan = scanned(one_tensor(tmp_path / "m.gguf", np.zeros((4, 180), np.uint8), "Q4_0"), llama)
    assert fingerprint(FORMATS["Q4_0"], [scan]).consistent is None


# -- against the source -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1"])
def test_the_fixtures_are_what_llama_makes_of_their_source(name: str) -> None:
    result = run(TINY[name], source=TINY["F16"])
    assert result.exit_code == 0
    assert result.findings == ()
    assert len(result.comparisons) == 30
    assert all(c.result is not None and c.result.differing == 0 for c in result.comparisons)
    assert "30 of 30 tensors are, byte for byte" in audit_text.render(result)


def test_blocks_that_are_not_the_sources(tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "a.gguf", "blk.2.ffn_down.weight", 9, 4, 7, b"\x5a")
    path = patched_block(path, tmp_path / "m.gguf", "blk.2.ffn_down.weight", 200, 0, 3, b"\x5a")
    result = run(path, source=TINY["F16"], readers=False)
    (found,) = result.findings
    assert found.id == rule("source-differs")
    assert "2 of " in found.found
    assert "row 9 block 4" in found.found
    (different,) = [c for c in result.comparisons if c.result is not None and c.result.differing]
    assert different.first == (9, 4)
    assert different.xrays is not None
    ours, made = different.xrays
    assert [i for i, (a, b) in enumerate(zip(ours.raw, made.raw, strict=True)) if a != b] == [7]
    text = audit_text.render(result)
    assert "blk.2.ffn_down.weight" in text
    assert "1 of 18 bytes, " in text
    assert result.exit_code == 1


def test_elements_that_are_not_the_sources(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((16, 64)).astype(np.float32)
    source = write_model(tmp_path / "s.gguf", {"a": (x, "F32"), "b": (x, "F32"), "c": (x, "F32")})
    half, wrong = x.astype(np.float16), x.astype(np.float16)
    wrong[3, 5] += 1
    path = write_model(tmp_path / "m.gguf", {"a": (half, "F16"), "b": (wrong, "F16"), "c": (x, "F32")})
    result = run(path, source=source, readers=False)
    (found,) = result.findings
    assert found.owner == "b"
    assert "1 of 1,024 values" in found.found
    assert "row 3 value 5" in found.found


def test_tensors_that_only_one_file_has(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 64)).astype(np.float32)
    source = write_model(tmp_path / "s.gguf", {"a": (x, "F32"), "other": (x, "F32"), "turned": (x, "F32")})
    path = write_model(tmp_path / "m.gguf", {"a": (x, "F32"), "turned": (x.reshape(2, 128), "F32"), "new": (x, "F32")})
    result = run(path, source=source, readers=False)
    assert sorted((f.id, f.owner) for f in result.findings) == [
        (rule("source-missing"), "new"), (rule("source-missing"), "turned"), (rule("source-left"), "other"),
    ]  # fmt: skip
    assert result.exit_code == 1


def test_a_source_that_is_quantized_itself(tmp_path: Path, llama: Llama) -> None:
    """What is in neither type as it stands is decoded first, as llama.cpp does when it quantizes again."""
    path = tmp_path / "m.gguf"
    llama.quantize_file(TINY["Q5_1"], path, 2, False)
    result = run(path, source=TINY["Q5_1"], readers=False)
    by_type = {c.tensor.type.name: c for c in result.comparisons}
    assert set(by_type) >= {"Q4_0", "F32"}
    covered = [c for c in result.comparisons if c.result is not None]
    assert all(c.result is not None and c.result.differing == 0 for c in covered)


def test_metadata_that_name_an_importance_matrix(tmp_path: Path, llama: Llama, rng: np.random.Generator) -> None:
    x = rng.standard_normal((64, 256), np.float32)
    made = llama.quantize(2, x, np.exp(rng.standard_normal(256)).astype(np.float32))
    source = write_model(tmp_path / "s.gguf", {"w": (x, "F32")})
    path = write_model(tmp_path / "m.gguf", {"w": (made, "Q4_0")}, {"quantize.imatrix.file": "words.dat"})
    (found,) = run(path, source=source, readers=False).findings
    assert "metadata name an importance matrix" in found.found


def test_differences_far_into_a_tensor(llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    """A tensor is quantized anew in chunks of 2^20 values; here the second and the third hold differences."""
    x = rng.standard_normal((2500, 1024), np.float32)
    made = llama.quantize(8, x)
    made[1100, 34 * 5 + 7] ^= 1
    made[1100, 34 * 5 + 9] ^= 1
    made[1101, 34 * 2] ^= 1
    made[2499, -1] ^= 1
    source = write_model(tmp_path / "s.gguf", {"w": (x, "F32")})
    (found,) = run(write_model(tmp_path / "m.gguf", {"w": (made, "Q8_0")}), source=source, readers=False).findings
    assert "3 of 80,000 blocks of 'w' differ, the first row 1100 block 5: " in found.found
    with open_model(tmp_path / "m.gguf") as model:
        assert found.start == model.tensors["w"].block_offset(1100, 5)


@pytest.mark.parametrize("k", [5 << 20, 32 * 131101], ids=["even pieces", "a prime number of blocks"])
def test_a_row_that_is_split(k: int, llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    half = rng.standard_normal(k, np.float32).astype(np.float16)
    made = llama.quantize(2, half.astype(np.float32)[None])
    source = write_model(tmp_path / "s.gguf", {"w": (half[None], "F16")})
    result = run(write_model(tmp_path / "m.gguf", {"w": (made, "Q4_0")}), source=source, readers=False)
    assert (result.exit_code, [c.first for c in result.comparisons]) == (0, [None])
    made[0, 18 * 123_456 + 3] ^= 0x10
    result = run(write_model(tmp_path / "m.gguf", {"w": (made, "Q4_0")}), source=source, readers=False)
    assert result.comparisons[0].first == (0, 123_456)
    assert f"1 of {k // 32:,} blocks of 'w' differ, the first row 0 block 123456" in result.findings[0].found


@pytest.mark.parametrize("kind", ["Q8_1", "Q8_K", "I32"])
@pytest.mark.parametrize("target", ["Q4_0", "F32"])
def test_a_source_that_llama_cannot_decode(
    kind: str, target: str, llama: Llama, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gguf.GGML_QUANT_SIZES, gguf.GGMLQuantizationType.Q8_1, (32, 36))  # it says 40 bytes
    x = rng.standard_normal((4, 256), np.float32)
    raw = np.zeros((4, {"Q8_1": 288, "Q8_K": 292, "I32": 1024}[kind]), np.uint8)
    first = (llama.quantize(2, x), "Q4_0") if target == "Q4_0" else (x, "F32")
    source = write_model(tmp_path / "s.gguf", {"a": (raw, kind), "b": (x, "F32"), "c": (x, "F32")})
    wrong = x.copy()
    wrong[2, 7] += 1
    for last, code in ((x, 5), (wrong, 1)):
        path = write_model(tmp_path / "m.gguf", {"a": first, "b": (x, "F32"), "c": (last, "F32")})
        result = run(path, source=source, readers=False)
        assert (result.exit_code, result.fault) == (code, None)
        why = f"not compared with the source: llama.cpp has no conversion from {kind}, the source's"
        assert result.unverified == [("a", why)]
        assert [c.first for c in result.comparisons] == [None, None, (2, 7) if code == 1 else None]
        assert [c.result is None for c in result.comparisons] == [True, False, False]
        text = audit_text.render(result)
        assert f"NOT VERIFIED a: {why}" in text
        assert f"{2 if code == 5 else 1} of 3 tensors are, byte for byte" in text


def test_a_type_that_llama_does_not_quantize_to(tmp_path: Path) -> None:
    x = np.ones((4, 256), np.float32)
    source = write_model(tmp_path / "s.gguf", {"a": (x, "F32"), "b": (x, "F32")})
    raw = np.zeros((4, 292), np.uint8)
    path = write_model(tmp_path / "m.gguf", {"a": (x.view(np.int32), "I32"), "b": (raw, "Q8_K")})
    result = run(path, source=source, readers=False)
    assert result.exit_code == 5
    assert [c.unverified for c in result.comparisons] == [
        "type I32: llama.cpp quantizes nothing to it", "type Q8_K: llama.cpp quantizes nothing to it",
    ]  # fmt: skip


# -- verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.gguf")), ids=lambda p: p.name)
def test_fixtures_are_clean(path: Path) -> None:
    result = run(path)
    assert (result.exit_code, result.findings, result.unverified) == (0, (), [])
    assert [r.verdict for readings in result.readings for r in readings] == ["accepted", "accepted"]
    for print_ in result.fingerprints:
        assert print_.consistent is not None
        assert print_.consistent.producer == REFERENCE


def test_shared_models_are_clean(shared_models: Path) -> None:
    paths = sorted(shared_models.glob("*.gguf"))
    assert paths
    for path in paths:
        result = run(path)
        assert (result.exit_code, result.findings) == (0, ()), path.name


@pytest.mark.parametrize("entry", corpus.CORPUS, ids=lambda e: e.name)
def test_exit_codes_of_the_corpus(entry: corpus.Entry, tmp_path: Path) -> None:
    """The other readers are in tests/test_readers.py."""
    path = tmp_path / entry.file_name
    path.write_bytes(entry.build().data)
    expected = {"refuse": 4, "error": 1, "warning": 0, None: 0}[entry.effect]
    result = run(path, readers=False)
    for strict in (False, True):
        result.strict = strict
        assert result.exit_code == (1 if strict and entry.effect == "warning" else expected), audit_text.render(result)
        ours = [f for f in result.findings if int(f.id[5:8]) < 100]
        assert [f.id for f in ours] == ([] if entry.slug is None else [rule(entry.slug)])
        text = audit_text.render(result, verbose=True, whole_map=True)
        assert text.replace("\n", "").isprintable()
        json.loads(audit_json.render(result))


@pytest.mark.parametrize("entry", corpus.SPLITS, ids=lambda e: e.name)
def test_exit_codes_of_split_models(entry: corpus.SplitEntry, tmp_path: Path) -> None:
    for name, data in entry.files.items():
        (tmp_path / name).write_bytes(data)
    result = run(tmp_path / entry.opened, readers=False)
    assert result.exit_code == (0 if entry.slug is None else 4)
    if entry.slug is not None:
        assert rule(entry.slug) in ids(result)
        assert entry.named in audit_text.render(result)


def test_all_parts_of_a_split_model(tmp_path: Path) -> None:
    first, second, *_ = split_model(TINY["Q4_0"], tmp_path, 12)
    result = run(first)
    assert (result.exit_code, len(result.files), len(result.readings)) == (0, 3, 3)
    assert len(result.contents) == 30
    with open_model(first) as model:
        tensor = next(t for t in model.tensors.values() if t.part == 1 and t.type.quantized)
        offset = tensor.block_offset(1, 1)
    patched(second, second, offset, b"\x00\x7c")
    (found,) = run(first, readers=False).findings
    assert (found.part, found.start) == (1, offset)


def test_a_type_that_is_not_covered(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_model(path, {"w": (np.zeros((4, 292), np.uint8), "Q8_K")})  # of activations; no file has it
    result = run(path, readers=False)
    assert result.exit_code == 5
    assert {why for _, why in result.unverified} == {"type Q8_K is not covered"}
    assert "NOT VERIFIED" in audit_text.render(result)


def test_nothing_but_a_header_is_clean(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf([], [], []).data)
    result = run(path)
    assert (result.exit_code, result.findings) == (0, ())


def test_selected_tensors(tmp_path: Path) -> None:
    result = run(TINY["Q4_0"], tensor=r"^blk\.0\.attn", readers=False)
    assert {c.tensor.name for c in result.contents} == {
        f"blk.0.attn_{what}.weight" for what in ("norm", "q", "k", "v", "output")
    }
    with pytest.raises(UsageError, match="no tensor matches"):
        run(TINY["Q4_0"], tensor="nothing")


def test_llama_dies_in_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: FilePasses, *_: object, **__: object) -> None:
        os.kill(self._process.pid, 9)
        self._process.ask("validate", {"raw": np.zeros(18, np.uint8)}, type=2)

    monkeypatch.setattr(FilePasses, "scans", die)
    result = run(TINY["Q4_0"])
    assert result.exit_code == 3
    assert "SIGKILL" in (result.fault or "")
    assert "BROKEN OFF" in audit_text.render(result)


def dies_at(monkeypatch: pytest.MonkeyPatch, method: str, number: int) -> list[int]:
    """llama.cpp is killed in its call of that number; returns where the calls are counted."""
    whole, calls = getattr(FilePasses, method), []

    def call(self: FilePasses, *arguments: object, **named: object) -> object:
        calls.append(self._process.pid)
        if len(calls) == number:
            os.kill(self._process.pid, 9)
        return whole(self, *arguments, **named)

    monkeypatch.setattr(FilePasses, method, call)
    return calls


def at_scan(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[Llama], object]) -> None:
    """Do something just before the scan of that number is waited for."""
    whole, scans = Llama.receive, []

    def receive(self: Llama, call: str) -> object:
        if call == "scan":
            scans.append(call)
            if len(scans) == number:
                do(self)
        return whole(self, call)

    monkeypatch.setattr(Llama, "receive", receive)


def dies_at_scan(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """llama.cpp is killed then, and what it has sent is lost."""

    def die(llama: Llama) -> None:
        os.kill(llama.pid, 9)
        llama._link.close()

    at_scan(monkeypatch, number, die)


def test_llama_dies_in_the_middle_of_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    dies_at_scan(monkeypatch, 2)
    compared = dies_at(monkeypatch, "requantize", 0)
    result = run(TINY["Q4_0"], readers=False, source=TINY["F16"])
    assert (result.exit_code, result.verdict, len(result.contents)) == (3, "broken off", 16)
    with open_model(TINY["Q4_0"]) as model:
        names = list(model.tensors)
    assert result.unverified == [(name, "not reached") for name in names[16:]]
    assert "died in scan (SIGKILL)" in (result.fault or "")
    assert (compared, result.comparisons) == ([], ())  # there is no llama.cpp to compare with
    text = audit_text.render(result)
    assert "16 of 30 looked at" in text
    assert "NOT VERIFIED … and 4 more" in text


def test_llama_dies_in_the_middle_of_a_comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was found before is kept."""
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.2.ffn_down.weight", 9, 4, 7, b"\x5a")
    with open_model(path) as model:
        names = list(model.tensors)
    reached = names.index("blk.2.ffn_down.weight") + 1
    dies_at(monkeypatch, "requantize", reached + 1)
    result = run(path, readers=False, source=TINY["F16"])
    why = "not compared with the source: not reached"
    assert result.unverified == [(name, why) for name in names[reached:]] != []
    assert ids(result) == [rule("source-differs")]
    assert (result.exit_code, len(result.contents)) == (1, 30)
    text = audit_text.render(result)
    assert f"{reached - 1} of 30 tensors are, byte for byte" in text
    assert "BROKEN OFF: llama.cpp died in requantize (SIGKILL)" in text
    monkeypatch.undo()
    dies_at(monkeypatch, "requantize", 5)
    assert run(TINY["Q4_0"], readers=False, source=TINY["F16"]).exit_code == 3


@pytest.mark.parametrize(("effect", "code"), [("warning", 3), ("error", 1)])
def test_findings_survive_that_llama_does_not_start(effect: str, code: int, tmp_path: Path) -> None:
    entry = next(e for e in corpus.BAD if e.effect == effect)
    path = tmp_path / "m.gguf"
    path.write_bytes(entry.build().data)
    result = run(path, readers=False, time_limit=0.001)
    assert ids(result) == [rule(entry.slug or "")]
    assert (result.exit_code, result.contents) == (code, ())
    assert "llama.cpp hung in start" in (result.fault or "")
    assert {why for _, why in result.unverified} == {"not reached"}
    assert len(result.unverified) == result.n_tensors
    assert "BROKEN OFF" in audit_text.render(result)


def at_call(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, number: int, do: Callable[[], object]) -> None:
    """Do something just before llama.cpp's call of that number."""
    whole, calls = getattr(kind, method), []

    def call(self: object, *arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == number:
            do()
        return whole(self, *arguments, **named)

    monkeypatch.setattr(kind, method, call)


def rewritten(path: Path) -> None:
    """One bit of the last byte, in place."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def renamed(path: Path) -> None:
    """Another file of the same bytes in its place."""
    shutil.copy(path, path.with_name("other")).replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewritten": rewritten, "renamed": renamed, "touched": lambda path: os.utime(path, ns=(1, 1)),
    "cut": lambda path: os.truncate(path, 1000), "removed": os.unlink,
}  # fmt: skip


@pytest.mark.parametrize("number", [2, 3], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("change", ["rewritten", "renamed"])
def test_a_file_that_changes_while_it_is_scanned(
    change: str, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(shutil.copy(TINY["Q4_0"], tmp_path / "m.gguf"))
    at_scan(monkeypatch, number, lambda _llama: CHANGES[change](path))
    result = run(path, readers=False)
    assert (result.changed, result.exit_code, result.verdict) == (True, 3, "broken off")
    said = [line for line in audit_text.render(result).splitlines() if "was changed while it was read" in line]
    assert said == ["BROKEN OFF: a file was changed while it was read: what was found need not hold"]


def test_a_file_that_changes_after_the_last_scan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing fails then: only the state of the file at the end tells. An error that was found need not be one."""
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    whole = Examination.fingerprints
    monkeypatch.setattr(Examination, "fingerprints", lambda self: (rewritten(path), whole(self))[1])
    result = run(path, readers=False)
    assert (result.changed, result.exit_code) == (True, 3)
    assert ids(result) == [rule("scale-not-finite")]


def test_a_source_that_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = Path(shutil.copy(TINY["F16"], tmp_path / "s.gguf"))
    at_call(monkeypatch, FilePasses, "requantize", 30, lambda: os.utime(source, ns=(1, 1)))
    result = run(TINY["Q4_0"], readers=False, source=source)
    assert (result.changed, result.exit_code) == (True, 3)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_before_the_first_scan(
    change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(shutil.copy(TINY["Q4_0"], tmp_path / "m.gguf"))
    at_call(monkeypatch, Llama, "versions", 1, lambda: CHANGES[change](path))
    try:
        result = run(path)
    except MalformedFile:  # its digest was not done yet
        assert change == "cut"
        return
    assert (result.changed, result.exit_code) == (True, 3)
    assert len(result.unverified) == 30


@pytest.mark.parametrize("change", ["rewritten", "renamed", "touched", "removed"])
def test_the_bytes_rung_of_a_file_that_changes(change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = Path(shutil.copy(TINY["Q4_0"], tmp_path / "m.gguf"))
    at_scan(monkeypatch, 3, lambda _llama: CHANGES[change](path))
    report = bytes_rung(path)
    assert (report.exit_code, report.rungs[0].failures) == (3, [])
    assert report.rungs[0].fault == "the file was changed while it was read"


DOCTORED: dict[str, Callable[[list[Range]], list[Range]]] = {
    "a hole": lambda owned: owned[:7] + owned[8:],
    "the first range gone": lambda owned: owned[1:],
    "the end gone": lambda owned: owned[:-1],
    "one twice": lambda owned: [*owned, owned[9]],
    "one byte too early": lambda owned: [*owned[:-1], owned[-1]._replace(start=owned[-1].start - 1)],
    "one byte too many": lambda owned: [*owned[:-1], owned[-1]._replace(stop=owned[-1].stop + 1)],
}


@pytest.mark.parametrize("doctor", DOCTORED)
def test_bytes_that_no_field_or_two_own(doctor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def doctored(path: Path) -> Model:
        model = open_model(path)
        model.parts[0].byte_map = DOCTORED[doctor](list(model.parts[0].byte_map))
        return model

    for module in ("gguf_verify.audit.audit", "gguf_verify.verification"):
        monkeypatch.setattr(sys.modules[module], "open_model", doctored)
    result = run(TINY["Q4_0"], readers=False)
    assert set(ids(result)) == {"GGUF-104-unowned"}
    assert (result.exit_code, result.verdict) == (1, "wrong")
    text = audit_text.render(result)
    assert "each owned by one field: 100 %" not in text
    assert "NOT each owned by one field, see below" in text
    report = bytes_rung(TINY["Q4_0"])
    assert report.exit_code == 1
    assert any("GGUF-104-unowned" in failure.what for failure in report.rungs[0].failures)


def test_what_was_not_read_of_a_refused_file(tmp_path: Path) -> None:
    entry = next(e for e in corpus.BAD if e.slug == "string-length")
    path = tmp_path / "m.gguf"
    path.write_bytes(entry.build().data)
    result = run(path, readers=False)
    unread = sum(r.nbytes for r in result.files[0].byte_map if r.kind == "unread")
    text = audit_text.render(result)
    assert unread > 0
    assert f"bytes       {result.files[0].size:,}, {unread:,} of them not read, " in text
    assert "100 %" not in text


def test_a_cache_entry_that_is_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "cache_dir", lambda: tmp_path)
    path = one_tensor(tmp_path / "m.gguf", np.zeros((2, 32), np.uint8), "BF16")
    kind = tensor_type(ELEMENTS["BF16"].type_id)
    assert kind is not None
    library = library_path(kernel_root(), '#include "emulator/scan.hpp"\n', content.scanner_options(kind))
    assert library.parent == tmp_path
    library.write_bytes(b"garbage")
    result = run(path, readers=False)
    assert (result.exit_code, result.fault) == (0, None)
    assert [p.name for p in tmp_path.glob("*.so")] == [library.name]
    assert library.read_bytes()[:4] == b"\x7fELF"


def test_warnings_as_errors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(next(e for e in corpus.BAD if e.slug == "trailing").build().data)
    assert [run(path, readers=False, strict=strict).exit_code for strict in (False, True)] == [0, 1]


def test_a_claim_is_a_note_of_the_bytes_rung(tmp_path: Path) -> None:
    entry = next(e for e in corpus.CLAIMS if e.slug == "file-type")
    path = tmp_path / entry.file_name
    path.write_bytes(entry.build().data)
    report = bytes_rung(path)
    assert report.exit_code == 0
    assert [note for note in report.rungs[0].notes if rule("file-type") in note]


def test_a_file_that_changes_under_the_audit(tmp_path: Path, llama: Llama) -> None:
    path = shutil.copy(TINY["Q4_0"], tmp_path / "m.gguf")
    with open_model(path) as model:
        tensor = model.tensors["blk.0.ffn_up.weight"]
        os.utime(path, ns=(1, 1))
        with pytest.raises(LlamaRefused, match="changed after it was opened"):
            list(content.contents([tensor], llama))
    with open_model(path) as model:
        tensor = model.tensors["blk.0.ffn_up.weight"]
        os.truncate(path, 100)
        with pytest.raises((LlamaRefused, MalformedFile)):
            list(content.contents([tensor], llama))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setattr(cache, "cache_dir", lambda: tmp_path)
    result = run(TINY["Q4_0"], readers=False)
    assert result.exit_code == 3
    assert "no C++ compiler" in (result.fault or "")


# -- reports ----------------------------------------------------------------------------------------------------


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
    text = audit_text.render(run(three_tensors(tmp_path / "m.gguf"), readers=False))
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if re.match(r"Q4_[01] +[0-9]", line)}
    assert rows == {
        "Q4_0": ["2", "5", "2", "0.125", "5", "-", "-", "30.0%", "0"],
        "Q4_1": ["1", "3", "0", "0.25", "0.5", "-3", "1", "66.7%", "1"],
    }


def test_one_of_three_tensors(tmp_path: Path) -> None:
    path = three_tensors(tmp_path / "m.gguf")
    text = audit_text.render(run(path, tensor="^b$", readers=False))
    assert "1 of 3 looked at" in text
    assert "CLEAN (1 of 3 tensors) in" in text
    assert "CLEAN in" in audit_text.render(run(path, readers=False))


def test_the_map_prints_every_byte_once() -> None:
    result = run(TINY["Q4_0"], readers=False)
    lines = re.findall(r"^ +(0x[0-9a-f]+) +(0x[0-9a-f]+) +([0-9,]+)  ", audit_text.render(result, whole_map=True), re.M)
    at = 0
    for start, stop, nbytes in lines:
        assert int(start, 16) == at
        at = int(stop, 16)
        assert at - int(start, 16) == int(nbytes.replace(",", ""))
    assert at == TINY["Q4_0"].stat().st_size


def test_the_report_fits_in_100_columns() -> None:
    for path in (TINY["Q4_0"], TINY["Q5_1"], TINY["F16"]):
        for line in audit_text.render(run(path, readers=False), verbose=True).splitlines():
            assert len(line) <= 100 or line.startswith("file  "), line


def test_colour_only_where_it_is_asked_for(tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    result = run(path, readers=False)
    assert "\x1b" not in audit_text.render(result, True, True)
    assert "\x1b[1;31merror" in audit_text.render(result, colour=True)


def test_the_json_holds_what_the_docstring_says(tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    whole = json.loads(audit_json.render(run(path, source=TINY["F16"])))
    described = re.findall(r"^    (\w+(?:, \w+)*)  ", audit_json.__doc__ or "", re.M)
    described += ["seconds", "command", "strict"]
    assert set(whole) == {name for names in described for name in names.split(", ")}
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
    text = audit_text.render(run(path), True, True)
    assert text.replace("\n", "").isprintable()
    assert "\\x1b[31mred\\u202e" in text


def test_threads_say_the_same(tmp_path: Path) -> None:
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
    """What it goes on to say would be taken for the answer to another call."""
    with Llama() as other, open_model(TINY["Q4_0"]) as model:
        found = content.contents(list(model.tensors.values()), other)
        next(found)
        found.close()
        with pytest.raises(EnvironmentFault, match="died"):
            other.versions()
    assert llama.versions()
