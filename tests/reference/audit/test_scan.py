"""llama.cpp's scan of a tensor against a slow recount."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict

from gguf_verify.audit import content
from gguf_verify.audit.fingerprint import patterns_of
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS, decode_elements
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts import compiler
from gguf_verify.llama.files import ScannerOf
from gguf_verify.llama.library import Llama
from gguf_verify.support.paths import kernel_root
from tests.support import corpus
from tests.support.audits import Bytes, halves, one_tensor, scanned
from tests.support.needs import need
from tests.support.tools import LEGACY


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def edge_blocks(fmt: BlockFormat, rng: np.random.Generator, n: int) -> Bytes:
    """Random bytes, and every bit pattern of a half as the scale; some rows of zeros and of equal bytes."""
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), np.uint8)
    halves = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    k = min(n, len(halves))
    blocks[:k, :2] = halves[:k]
    blocks[n - 8 :] = 0
    blocks[n - 16 : n - 8, fmt.field_offset("qs") :] = 0x88
    return blocks


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
    for i, r in enumerate(patterns_of(fmt)):
        assert scan.obeying[i] == sum(obeys(fmt, set(codes), r.masks) for codes in q[d != 0].tolist()), r


@pytest.mark.parametrize("fmt", LEGACY.values(), ids=list(LEGACY))
def test_rules_where_no_block_is_special(
    fmt: BlockFormat, llama: Llama, rng: np.random.Generator, tmp_path: Path
) -> None:
    """Whole batches of sound blocks are counted together. Some blocks lack some codes, so that each rule holds for a
    part of them; the last batch is not whole."""
    per_row, n_rows = 7, 997
    values = rng.uniform(-1, 1, (n_rows * per_row, 32)).astype(np.float32)
    few = rng.integers(0, 4, len(values))
    values[few == 1] = np.abs(values[few == 1])
    values[few == 2] = np.round(values[few == 2])
    values[few == 3, 1:] *= 0.3
    blocks = fmt.encode(values)
    blocks[::3, 1] ^= 0x80  # the scale's sign
    spare = rng.integers(0, 256, blocks[::5].shape, np.uint8)
    blocks[::5, fmt.field_offset("qs") :] = spare[:, fmt.field_offset("qs") :]
    scan = scanned(one_tensor(tmp_path / "m.gguf", blocks.reshape(n_rows, -1), fmt.name), llama)
    d, q = fmt.scale(blocks), fmt.codes(blocks).astype(int)
    assert np.isfinite(d).all()
    assert (scan.differing, scan.not_finite, scan.zero_scales) == (0, 0, (d == 0).sum())
    low = -128 if fmt.bits == 8 else 0
    assert scan.codes.tolist() == np.bincount((q - low).ravel(), minlength=256).tolist()
    for i, r in enumerate(patterns_of(fmt)):
        obeying = sum(obeys(fmt, set(codes), r.masks) for codes in q[d != 0].tolist())
        assert scan.obeying[i] == obeying, r
        assert 0 < obeying < len(blocks)


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.name not in LEGACY], ids=lambda f: f.name)
def test_a_scan_of_any_format(fmt: BlockFormat, llama: Llama, rng: np.random.Generator, tmp_path: Path) -> None:
    """Figures that do not depend on how the scales are stored."""
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


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *((f, "-mno-avx512f") for f in FORMATS),
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
    """Each of the four conditions of a rule."""
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
