"""What exact products do in float32 on a card: the very kernels, on the CPU host, give the bits of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.semantics import rounding
from gguf_verify.support.paths import kernel_root
from tests.support.exact_products import Floats, bits, generator
from tests.unit.semantics import test_fused_multiply_add as sums

CASES = [getattr(sums, name) for name in dir(sums) if name.startswith("fma_")]


@pytest.fixture(scope="module")
def run() -> Callable[..., Any]:
    """Runs a kernel for each of an output's elements."""
    host = CpuHost()

    def run(entry: str, out: np.dtype[Any], size: int, inputs: list[npt.NDArray[Any]], *numbers: Any) -> Any:
        kernel = host.load(kernel_root(), "oracle/rounding.cu", entry, {})
        output = host.output(size * out.itemsize)
        given = [host.upload(array) for array in inputs]
        host.launch(kernel, (-(-size // 256), 1, 1), (256, 1, 1), [*given, output, *numbers])
        return host.download(output).view(out)

    return run


def same(got: Floats, expected: Floats) -> None:
    either = np.isnan(got) | np.isnan(expected)
    assert (np.isnan(got) == np.isnan(expected)).all()
    assert (bits(got) == bits(expected))[~either].all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("streams", [1, 2])
def test_chains(case: Callable[..., Any], streams: int, run: Callable[..., Any]) -> None:
    a, acc = case(generator(case.__name__), 4200)
    steps = a.reshape(streams, -1, 300)
    start = acc[:300]
    with np.errstate(all="ignore"):
        expected = rounding.chain_rounded(list(steps), start)
        numbers = np.int32(streams), np.int32(steps.shape[1]), np.int64(300)
        got = run("chain", np.dtype(np.float32), 300, [steps[0], steps[-1], start], *numbers)
        same(got, expected)
        one = run("chain", np.dtype(np.float32), len(a), [a, a, acc], np.int32(1), np.int32(1), np.int64(len(a)))
        same(one, rounding.add_rounded(a, acc))


def test_chains_of_no_number(run: Callable[..., Any]) -> None:
    a = np.array([0.0, -0.0, 0.0, -0.0, 1.5, np.inf, -np.inf, np.inf, np.nan, 1.0, -np.inf])
    acc = np.array([0.0, -0.0, -0.0, 0.0, -1.5, 1.0, 1.0, -np.inf, 1.0, np.nan, -np.inf], np.float32)
    with np.errstate(invalid="ignore"):
        expected = rounding.add_rounded(a, acc)
    same(run("chain", np.dtype(np.float32), 11, [a, a, acc], np.int32(1), np.int32(1), np.int64(11)), expected)


def test_multiply_adds(run: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((67, 3)) * 2.0 ** rng.integers(-75, 20, (67, 3))).astype(np.float32)
    w = (rng.standard_normal((67, 101)) * 2.0 ** rng.integers(-75, 20, (67, 101))).astype(np.float32)
    numbers = np.int32(67), np.int32(3), np.int32(101)
    got = run("multiply_adds", np.dtype(np.float32), 303, [a, w], *numbers).reshape(3, 101)
    same(got, rounding.multiply_adds(a, w))


def test_conversions(run: Callable[..., Any]) -> None:
    small = np.array(
        [2.0**-127, 2.0**-149, -3 * 2.0**-149, 0, -0.0, np.inf, np.nan, 1 + 2.0**-24, 1e39, 2.0**-150 * 1.5]
    )
    with np.errstate(over="ignore"):
        expected = rounding.to_float32(small)
        floats = small.astype(np.float32)
    double = np.dtype(np.float64)
    np.testing.assert_array_equal(run("to_float32", double, len(small), [small], np.int64(len(small))), expected)
    np.testing.assert_array_equal(run("widened", double, len(small), [floats], np.int64(len(small))), expected)
