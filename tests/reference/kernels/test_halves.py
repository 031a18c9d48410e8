"""The kernels of the family f16: weights become halves that are rounded once, and outputs lie within the bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.half_tiling import HalfTiling
from gguf_verify.kernels.halves import ROWS, STAGE, Layout, check_halves
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.ladder.f16_wgmma import Wgmma
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.rungs.generated_inputs import any_blocks, held_by
from gguf_verify.rungs.layers.probes.inputs import ProbeInputs
from gguf_verify.rungs.layers.probes.repeating import repeated_units
from gguf_verify.rungs.plan import Probe
from gguf_verify.semantics.declared import IN_TENSOR_CORES, declared
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.support.errors import KernelFault
from tests.reference.kernels.cubins import cards, stack
from tests.support.kernel_inputs import random_weights, usual_weights
from tests.support.tools import altered_kernel

PLAIN = ("f16_naive", "f16_mma")
WEIGHTS = [f for f in FORMATS.values() if f.weights]


OF_TYPES = pytest.mark.parametrize("fmt", [pytest.param(f, id=f.name) for f in WEIGHTS])


def right(kernel: ShippedKernel, fmt: BlockFormat, m: int, n: int, k: int) -> bool:
    """Whether `gemm` is within the bound; `product` must have the same bits."""
    w = usual_weights(fmt, n, k)
    x = np.random.default_rng(m).normal(size=(m, k)).astype(np.float32)
    given = IN_TENSOR_CORES.bytes_of(x)
    assert kernel.quantize(x).tobytes() == given.tobytes()
    weights = kernel.upload(fmt, w)
    y = kernel.gemm(weights, given)
    assert y.tobytes() == kernel.product(weights, x).tobytes()
    expected = product(IN_TENSOR_CORES, fmt, w, given)
    assert np.isfinite(expected.exact).all()
    return judge(y, expected).passed


@OF_TYPES
def test_a_weight_is_rounded_once(host: CpuHost, fmt: BlockFormat) -> None:
    """Also under subnormal and large scales: the half of d·q + m, or of to_float's value."""
    kernel, n, k = ShippedKernel(KERNELS["f16_dequantized"], host), 70, 3 * max(32, fmt.block_size)
    w = random_weights(np.random.default_rng(3), fmt, n, k)
    layout = Layout(fmt)
    tiles, stages = layout.shape(n, k)
    out = host.output(tiles * stages * ROWS * STAGE * 2)
    macros, _ = HalfTiling(256, row_groups=2).macros(layout, ROWS * STAGE * 2, stages)
    args = [kernel.upload(fmt, w).buffer, out, np.int64(tiles * stages)]
    host.launch(kernel.site.function("dequantize", fmt, macros=macros), (tiles * stages, 1, 1), (128, 1, 1), args)
    # pieces of a row lie at piece ^ (row % 8); of 16 values the pairs 0, 2, 4, 6 come before 1, 3, 5, 7
    pieces = host.download(out).view("<u4").reshape(tiles, stages, ROWS, 8, 4)
    rows = np.arange(ROWS)
    found = np.stack([pieces[:, :, rows, p ^ rows % 8] for p in range(8)], axis=3)
    pairs = found.reshape(tiles, stages, ROWS, 4, 2, 4).swapaxes(4, 5)
    halves = np.ascontiguousarray(pairs).view("<u2").reshape(tiles, stages, ROWS, STAGE).swapaxes(1, 2)
    # rows g and g + 8 of 16 are W's 2g and 2g + 1
    by_row = np.ascontiguousarray(halves).reshape(tiles, 4, 2, 8, stages, STAGE).swapaxes(2, 3)
    got = by_row.reshape(tiles * ROWS, -1)
    blocks = w.reshape(n, -1, fmt.block_bytes)
    d, m = (np.repeat(v(blocks).astype(np.float64), fmt.group, axis=-1) for v in (fmt.scales, fmt.minima))
    with np.errstate(over="ignore"):
        once = (d * fmt.codes(blocks).astype(np.float64) + m).astype(np.float16).view("<u2").reshape(n, k)
        decoded = fmt.decode(blocks).astype(np.float16).view("<u2").reshape(n, k)
    zero = (once & 0x7FFF == 0) & (got[:n, :k] & 0x7FFF == 0)
    assert ((got[:n, :k] == once) | (got[:n, :k] == decoded) | zero).all()
    assert not (got[n:] & 0x7FFF).any()
    assert not (got[:, k:] & 0x7FFF).any()


@OF_TYPES
def test_mma_is_within_the_bound(host: CpuHost, fmt: BlockFormat) -> None:
    kernel, k = ShippedKernel(KERNELS["f16_mma"], host), 3 * max(32, fmt.block_size)
    assert right(kernel, fmt, 9, 130, k)
    assert right(kernel, fmt, 3, 65, k)


@OF_TYPES
def test_wgmma_is_within_the_bound(host: CpuHost, fmt: BlockFormat) -> None:
    """A ring that turns, stages that not every warpgroup has one of, and a tile's edges."""
    kernel, unit = ShippedKernel(KERNELS["f16_wgmma"], host), max(32, fmt.block_size)
    assert right(kernel, fmt, 5, 67, 4416 // unit * unit)
    assert right(kernel, fmt, 3, 1, unit)


@pytest.mark.parametrize("m", [12, 20, 40, 65, 129, 300])
def test_tiles_of_wgmma(host: CpuHost, m: int) -> None:
    kernel, fmt = ShippedKernel(KERNELS["f16_wgmma"], host), FORMATS["Q4_K"]
    for n, k in ((1, 256), (200, 1280)):
        assert right(kernel, fmt, m, n, k)


def test_dequantized_is_within_the_bound(host: CpuHost) -> None:
    kernel, fmt = ShippedKernel(KERNELS["f16_dequantized"], host), FORMATS["Q4_1"]
    assert right(kernel, fmt, 3, 67, 480)


def test_parts_have_the_same_bits_in_any_order(host: CpuHost) -> None:
    """Of threads and of copies: sums of warpgroups replace the ring only when all have read it."""
    kernel, fmt = ShippedKernel(KERNELS["f16_wgmma"], host), FORMATS["Q4_0"]
    w, x = usual_weights(fmt, 67, 2080), np.random.default_rng(5).normal(size=(5, 2080)).astype(np.float32)
    drawn = kernel.under(Schedule("seeded", 2))
    assert drawn is not None
    assert kernel.product(kernel.upload(fmt, w), x).tobytes() == drawn.product(drawn.upload(fmt, w), x).tobytes()


def test_tilings_that_are_chosen() -> None:
    """A tile of few tokens, and parts of few rows; otherwise the tiling that keeps 132 multiprocessors busy."""
    shapes = ((1, 14336), (16, 4096), (64, 4096), (128, 14336), (128, 4096), (512, 14336), (512, 4096), (4096, 4096))
    for kind, of_512 in (("Q8_0", (128, 1)), ("Q4_K", (256, 2))):
        chosen = [Wgmma().tiling(FORMATS[kind], m, n) for m, n in shapes]
        assert [tiling.tokens for tiling in chosen] == [8, 16, 64, 128, 64, 256, of_512[0], 256]
        assert [tiling.parts for tiling in chosen] == [1, 2, 2, 1, 1, 1, of_512[1], 1]
    assert Wgmma().tiling(FORMATS["Q8_0"], 1, 64).parts == 4


def test_random_blocks_that_halves_hold() -> None:
    """Random weights of any bits keep products of f16 finite. Thread blocks of huge products get nothing else."""
    fmt = FORMATS["Q4_K"]
    blocks = any_blocks(fmt, 2000, 1)
    held = held_by(IN_TENSOR_CORES, fmt, blocks)
    ones = IN_TENSOR_CORES.bytes_of(np.ones((1, fmt.block_size), np.float32))
    with np.errstate(all="ignore"):
        finite = np.isfinite(product(IN_TENSOR_CORES, fmt, blocks, ones).exact[0])
    assert finite[held].all()
    assert 0.05 < held.mean() < finite.mean() < 0.9
    # a row of one block may have weights of any size: no other error is lost beside it
    alone = held_by(IN_TENSOR_CORES, fmt, blocks, alone=True)
    assert finite[alone].all()
    assert (alone | ~held).all()
    largest = np.abs(fmt.decode(blocks)).max(axis=-1)
    assert largest[held].max() <= 0.25 < 10_000 < largest[alone].max()
    for narrower in (declared("f16", accumulates="float16"), declared(activations="float16", term="half_steps")):
        assert (held_by(narrower, fmt, blocks, alone=True) == held).all()
    like = np.ones((1, fmt.block_size), np.float32)
    inputs = ProbeInputs(fmt, IN_TENSOR_CORES, blocks[held], like, 1, lambda *_: iter(()))
    for k, least, most in ((256, 10_000, 65504), (512, 0.01, 0.25)):
        drawn = inputs.weights(Probe((1,), 400, k, "any bits"))
        assert least < np.abs(fmt.decode(drawn.reshape(-1, fmt.block_bytes))).max() <= most
    units = repeated_units(IN_TENSOR_CORES, fmt, blocks[:1], 0).reshape(-1, fmt.block_bytes)
    assert len(units) > 100
    assert held_by(IN_TENSOR_CORES, fmt, units).all()


FAULTS = [
    pytest.param("f16_wgmma", "gemm/f16/halves.cuh", "0x64006400), twice(BASE));",
                 "0x64006400), twice(BASE) + (threadIdx.x == 69));", id="one thread's zero point is off by one"),
    pytest.param("f16_wgmma", "gemm/f16/03_wgmma.cu", "j < 4; ++j) wgmma<true>", "j < 3; ++j) wgmma<true>",
                 id="the last 16 values of a stage dropped"),
    pytest.param("f16_wgmma", "gemm/add_parts.cu", "p < parts;", "p < parts - 1;", id="the last part's sums dropped"),
    pytest.param("f16_wgmma", "gemm/f16/03_wgmma.cu", "k < K_GROUPS - 1; ++k", "k < K_GROUPS - 2; ++k",
                 id="the last group's sums dropped"),
    pytest.param("f16_mma", "gemm/f16/mma.cuh", "lane.d[i] += row[k] * column[k];",
                 "lane.d[i] = half_to_float(float_to_half(lane.d[i] + row[k] * column[k]));", id="sums in half"),
    pytest.param("f16_mma", "gemm/f16/02_mma.cu", "two_halves(values[0], values[1])",
                 "two_halves(values[1], values[0])", id="two values exchanged"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "old", "new"), FAULTS)
def test_a_fault_is_seen(tmp_path: Path, name: str, file: str, old: str, new: str) -> None:
    assert not right(altered_kernel(tmp_path, name, file, old, new), FORMATS["Q4_0"], 5, 67, 1056)


@pytest.mark.parametrize(
    ("old", "new"), [("- (CODE_LOW)", "- (CODE_LOW) + (row == 5)"), ("b->scale((", "(row == 66 ? 2 : 1) * b->scale((")]
)
def test_wrong_packing_is_seen(tmp_path: Path, old: str, new: str) -> None:
    kernel, fmt = altered_kernel(tmp_path, "f16_wgmma", "pack/halves.cu", old, new), FORMATS["Q4_0"]
    with pytest.raises(KernelFault, match="the packed weights do not hold the file's codes, scales and minima"):
        kernel.upload(fmt, usual_weights(fmt, 67, 96))


@pytest.mark.parametrize("bits", [0x7E00, 0x7C01, 0xFFFF, 0x7C00, 0xFC00, 0x8001])
def test_scales_that_are_no_numbers_are_packed(host: CpuHost, bits: int) -> None:
    """Hosts differ in the NaN that a conversion gives; another number in its place is seen."""
    kernel, fmt = ShippedKernel(KERNELS["f16_wgmma"], host), FORMATS["Q4_1"]
    w = usual_weights(fmt, 67, 96)
    blocks = fmt.view(w.reshape(67, 3, fmt.block_bytes))
    for field in ("d", "m"):
        blocks[field][65, 2] = np.array(bits, np.uint16).view(np.float16)
    packed = kernel.upload(fmt, w).buffer
    blocks["d"][65, 2] = 1.0
    with pytest.raises(KernelFault, match="do not hold the file's codes, scales and minima"):
        check_halves(host, packed, w, fmt)


@pytest.mark.parametrize(
    ("name", "sm"),
    [
        *((n, sm) for sm in ("80", "86", "89", "90", "100") for n in PLAIN),
        *((n, sm) for sm in ("75", "120") for n in PLAIN),
        ("f16_wgmma", "90a"),
        ("f16_dequantized", "90a"),
    ],
)
def test_compiles_and_spills_nothing(name: str, sm: str) -> None:
    supported, fmt, spec = cards(), FORMATS["Q4_K"], KERNELS[name]
    tiling = HalfTiling(256, row_groups=2, pipelined=True)
    macros = {"f16_mma": {"TOKENS": "128"}, "f16_naive": {}}.get(name) or tiling.macros(Layout(fmt), 8192, 64)[0]
    if int(sm.rstrip("a")) not in supported:
        pytest.skip(f"this NVRTC does not compile for sm_{sm}")
    assert not stack(spec.file, sm, {**spec.defines_for(fmt), **macros})
