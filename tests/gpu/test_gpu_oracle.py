"""Exact products on a GPU are those of NumPy: decoded blocks and ordered sums bit for bit, and exact sums within the
rounding of float64. Skipped by name where no GPU can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cupy_arrays import CupyArrays, arrays_for
from gguf_verify.hosts.cupy_host import CupyHost
from gguf_verify.hosts.staging import PIECE
from gguf_verify.kernels.by_name import on_host
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.packed import Contents, packed_shape, unpacked
from gguf_verify.results.options import Options
from gguf_verify.rungs.generated_inputs import any_blocks
from gguf_verify.semantics import rounding, screen
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.screen import screened
from gguf_verify.semantics.sums import Product
from gguf_verify.support.arrays import get, put
from gguf_verify.support.errors import EnvironmentFault, KernelFault
from gguf_verify.verification import verify
from tests.support.exact_products import bits, generator
from tests.support.tools import FIXTURES
from tests.unit.semantics import test_fused_multiply_add as sums
from tests.unit.semantics.test_screen import defined

pytestmark = pytest.mark.needs("gpu")

CASES = [getattr(sums, name) for name in dir(sums) if name.startswith("fma_")]


@pytest.fixture(scope="module")
def gpu() -> CupyArrays:
    device, words = arrays_for("gpu", "cpu", 0)
    assert device is not None
    assert words.startswith("gpu: ")
    return device


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_sums_in_float32_have_the_same_bits(case: Callable[..., Any], gpu: CupyArrays) -> None:
    a, acc = case(generator(case.__name__), 6000)
    steps, like = a.reshape(20, 300), gpu.put(np.zeros(1))
    with np.errstate(all="ignore"):
        for there, here in (
            (rounding.add_rounded(put(a, like), put(acc, like)), rounding.add_rounded(a, acc)),
            (
                rounding.chain_rounded([put(steps, like)] * 2, put(acc[:300], like)),
                rounding.chain_rounded([steps] * 2, acc[:300]),
            ),
        ):
            got = get(there)
            nan = np.isnan(got) & np.isnan(here)
            assert (bits(got) == bits(here))[~nan].all()
        np.testing.assert_array_equal(get(rounding.to_float32(put(a, like))), rounding.to_float32(a))


@pytest.mark.parametrize("size", [1, PIECE, 2 * PIECE, 9 * PIECE + 4])
def test_copies_hold_every_byte(size: int, gpu: CupyArrays) -> None:
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    values.flags.writeable = False
    np.testing.assert_array_equal(get(gpu.put(values)), values)
    wide = np.frombuffer(values[: size // 4 * 4], np.float32).reshape(-1, 1)
    assert get(gpu.put(wide)).tobytes() == wide.tobytes()


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
@pytest.mark.parametrize("strips", [False, True])
def test_packed_weights_are_unpacked_as_by_numpy(fmt: BlockFormat, strips: bool, gpu: CupyArrays) -> None:
    n, k = 300, 3 * fmt.block_size
    tiles, slices, chunk = packed_shape(fmt, n, k)
    packed = np.random.default_rng(4).integers(0, 256, (tiles, slices * chunk), np.uint8)
    there, clean = unpacked(fmt, gpu.put(packed), n, k, strips)
    here, _ = unpacked(fmt, packed, n, k, strips)
    assert Contents(*(None if v is None else get(v) for v in (there.codes, there.d, there.m))) == here
    rows = any_blocks(fmt, 12, 1).reshape(4, -1)
    meant = Contents.of(fmt, gpu.put(rows))
    assert Contents(*(None if v is None else get(v) for v in (meant.codes, meant.d, meant.m))) == Contents.of(fmt, rows)
    assert not clean
    assert unpacked(fmt, gpu.put(np.zeros_like(packed)), n, k, strips)[1]


def test_a_wrong_bit_of_packed_weights_is_found(gpu: CupyArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit that differs, where the two are compared on the GPU."""
    host = CupyHost()
    kernel = on_host(KERNELS["q8_1_gemv"], host).of(FORMATS["Q4_0"], 1, 256, 512)
    rows = np.random.default_rng(5).integers(0, 256, (256, 16 * 18), np.uint8)
    kernel.upload(FORMATS["Q4_0"], rows)
    compare = host.side_by_side

    def altered(output: Any, rows: Any) -> Any:
        packed, there = compare(output, rows)
        there[777] ^= 1
        return packed, there

    monkeypatch.setattr(host, "side_by_side", altered)
    with pytest.raises(KernelFault, match="do not hold the file's bytes"):
        kernel.upload(FORMATS["Q4_0"], rows)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
def test_blocks_are_read_as_by_numpy(fmt: BlockFormat, gpu: CupyArrays) -> None:
    blocks = any_blocks(fmt, 5000, 1).reshape(50, 100, fmt.block_bytes)
    there = gpu.put(blocks)
    with np.errstate(all="ignore"):
        for read in (fmt.codes, fmt.scales, fmt.minima, fmt.decode):
            got, expected = get(read(there)), read(blocks)
            if fmt is MXFP4 and read == fmt.decode:  # scales below the normal numbers: such rows are left to NumPy
                got, expected = (of[np.abs(fmt.scales(blocks)[..., 0]) >= 2.0**-126] for of in (got, expected))
            assert got.dtype == expected.dtype
            assert np.array_equal(got, expected, equal_nan=got.dtype.kind == "f")


@pytest.mark.parametrize("semantics", SEMANTICS.values(), ids=list(SEMANTICS))
def test_products_are_those_of_numpy(semantics: Semantics, gpu: CupyArrays) -> None:
    order = ASCENDING if semantics.order_known else None
    for fmt in FORMATS.values():
        if not defined(semantics, fmt):
            continue
        blocks = 2048 // fmt.block_size
        w = any_blocks(fmt, 80 * blocks, 2).reshape(80, -1)
        x = semantics.bytes_of(np.random.default_rng(3).standard_normal((17, 2048)).astype(np.float32))
        with np.errstate(all="ignore"):
            here = product(semantics, fmt, w, x, order)
            whole = product(semantics, fmt, w, x, order, device=gpu)
            quick = screened(semantics, fmt, w, x, order, device=gpu)
        assert not isinstance(quick.exact, np.ndarray)
        same(whole.placed(get), here)
        exact = replace(here, bound=get(quick.bound), spread=get(quick.spread))
        same(quick.placed(get), exact)
        y = (here.exact if here.ordered is None else here.ordered).astype(np.float32)
        y[3, 70] *= 1.01
        assert (judge(y, quick).bad == judge(y, here).bad).all()


def same(there: Product, here: Product) -> None:
    for name in ("exact", "bound", "spread"):
        np.testing.assert_allclose(getattr(there, name), getattr(here, name), rtol=1e-7, err_msg=name)
    if here.ordered is not None:
        assert there.ordered is not None
        np.testing.assert_array_equal(there.ordered, here.ordered)


def test_a_multiplication_in_fewer_bits_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy computes rows of the first product, then of one in 16: this test's own device has computed none."""
    gpu = CupyArrays(seed=0)
    semantics, fmt = SEMANTICS["q8_1"], FORMATS["Q4_K"]
    w = any_blocks(fmt, 80 * 8, 2).reshape(80, -1)
    x = semantics.bytes_of(np.random.default_rng(3).standard_normal((17, 2048)).astype(np.float32))
    lowered = screen._lowered

    def fewer(*args: Any) -> Product:
        made = lowered(*args)
        if isinstance(made.exact, np.ndarray):
            return made
        return replace(made, exact=made.exact.astype(np.float32).astype(np.float64))

    monkeypatch.setattr(screen, "_lowered", fewer)
    with pytest.raises(EnvironmentFault, match="the GPU computes other numbers than NumPy: products in float64"):
        screened(semantics, fmt, w, x, device=gpu)


def test_a_model_is_verified_with_products_on_the_gpu() -> None:
    reports = [
        verify(
            FIXTURES / "tiny-Q5_1.gguf", host="gpu", rungs=("blocks", "layers"),
            options=Options(probes="brief", n_predict=1, progress=False, exact_on=where),
        )
        for where in ("auto", "cpu")
    ]  # fmt: skip
    on_gpu, by_numpy = reports
    assert on_gpu.verdict == by_numpy.verdict == "verified"
    assert on_gpu.environment.exact_on.startswith("gpu: ")
    assert by_numpy.environment.exact_on == "NumPy"
    for got, expected in zip(on_gpu.rungs, by_numpy.rungs, strict=True):
        assert got.checked == expected.checked
        for who, worst in expected.worst.items():
            assert got.worst[who].utilisation == pytest.approx(worst.utilisation, rel=1e-4)
