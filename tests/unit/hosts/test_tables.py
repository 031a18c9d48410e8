"""The tables of the I-quants, on their way from the gguf package to the compilers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_verify.formats import grids
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts import compiler, nvrtc, tables
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.paths import kernel_root
from tests.support.needs import need

#: The tables that a format's kernels need.
NEEDED = {
    "IQ1_S": {"iq1"}, "IQ1_M": {"iq1"},
    "IQ2_XXS": {"iq2_xxs", "ksigns"}, "IQ2_XS": {"iq2_xs", "ksigns"}, "IQ2_S": {"iq2_s"},
    "IQ3_XXS": {"iq3_xxs", "ksigns"}, "IQ3_S": {"iq3_s"},
    "IQ4_NL": {"kvalues"}, "IQ4_XS": {"kvalues"},
}  # fmt: skip


def numbers(name: str) -> np.ndarray:
    """The entries of a generated header."""
    body = tables.headers()[f"tables/{name}.cuh"].split("{", 1)[1]
    return np.array([int(v, 0) for v in re.findall(r"-?0x[0-9a-f]+|-?\d+", body)])


@pytest.mark.parametrize(
    "grid",
    [
        grids.Grid("IQ2_XXS", 256, 8), grids.Grid("IQ2_XS", 512, 8), grids.Grid("IQ2_S", 1024, 8),
        grids.Grid("IQ3_XXS", 256, 4), grids.Grid("IQ3_S", 512, 4),
    ],
    ids=lambda grid: grid.name,
)  # fmt: skip
def test_grids_as_words(grid: grids.Grid) -> None:
    got = numbers(grid.name.lower()).astype("<u4").view(np.int8).reshape(grid.count, grid.size)
    assert (got == grid.entries()).all()
    assert got.min() > 0  # with_signs of kernels/formats/grid.cuh needs it


def test_grid_of_iq1_as_nibbles() -> None:
    packed = numbers("iq1").astype("<u4").view(np.uint8).reshape(2048, 4)
    assert (
        np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.int8) - 1 == grids.Grid("IQ1_S", 2048, 8).entries()
    ).all()


def test_signs_and_values() -> None:
    assert (numbers("ksigns") == grids.ksigns()).all()
    assert (numbers("kvalues") == grids.kvalues()).all()
    assert (np.bitwise_count(grids.ksigns()) % 2 == 0).all()
    assert (grids.ksigns() & 127 == np.arange(128)).all()


def test_every_build_gets_the_same_text() -> None:
    again = tables.headers.__wrapped__()
    assert again == tables.headers()
    assert tables.tables_hash.__wrapped__() == tables.tables_hash()
    assert set(again) == {f"tables/{name}.cuh" for names in NEEDED.values() for name in names}


def altered(change: Callable[[dict[str, str]], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts get other tables from here on."""
    texts = dict(tables.headers())
    change(texts)
    for module in (tables, nvrtc):
        monkeypatch.setattr(module, "headers", lambda: texts)
    key = tables.tables_hash.__wrapped__()
    monkeypatch.setattr(compiler, "tables_hash", lambda: key)


def gemm(fmt: BlockFormat, blocks: np.ndarray) -> np.ndarray:
    kernel = ShippedKernel(KERNELS["f32_naive"], CpuHost(1))
    x = np.ones((1, blocks.shape[1] // fmt.block_bytes * fmt.block_size), np.float32)
    return kernel.gemm(kernel.upload(fmt, blocks), kernel.quantize(x))


def test_a_changed_table_is_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are part of the cache's key, and what is compiled in."""
    fmt = FORMATS["IQ3_S"]
    blocks = np.zeros((1, fmt.block_bytes), np.uint8)
    blocks[0, 1] = 0x3C  # a scale of one; all groups are entry 0, which is 1, 1, 1, 1
    assert gemm(fmt, blocks) == 256
    at = "tables/iq3_s.cuh"
    altered(lambda t: t.update({at: t[at].replace("0x01010101", "0x01010102", 1)}), monkeypatch)
    assert gemm(fmt, blocks) == 256 + 64


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_compiles_with_the_tables_that_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC is given no other; and none is without use."""
    fmt = FORMATS[name]
    needed = {f"tables/{t}.cuh" for t in NEEDED.get(name, ())}
    assert needed <= set(tables.headers())

    def compiled(without: str = "") -> bytes:
        with monkeypatch.context() as patch:
            altered(lambda t: [t.pop(n) for n in set(t) - needed | {without} & set(t)], patch)
            return nvrtc.compile_cubin(kernel_root(), KERNELS["q8_1_dp4a"].file, "90", fmt.macros)

    need("nvrtc")
    assert compiled()
    for table in needed:
        with pytest.raises(EnvironmentFault, match=re.escape(table)):
            compiled(without=table)


@pytest.mark.parametrize("table", ["grid", "ksigns", "kvalues"])
def test_a_gguf_package_without_the_tables_is_said(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quants = SimpleNamespace(IQ2_XXS=SimpleNamespace(), IQ4_NL=SimpleNamespace(kvalues=(1,)))
    monkeypatch.setitem(sys.modules, "gguf.quants", quants)
    read: dict[str, Callable[[], object]] = {
        "grid": lambda: grids.Grid.entries.__wrapped__(grids.Grid("IQ2_XXS", 256, 8)),
        "ksigns": grids.ksigns.__wrapped__,
        "kvalues": grids.kvalues.__wrapped__,
    }
    with pytest.raises(EnvironmentFault, match="the installed gguf package does not hold"):
        read[table]()


def test_headers_are_written_where_the_compiler_looks(tmp_path: Path) -> None:
    tables.write_headers(tmp_path)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.cuh")} == set(tables.headers())
