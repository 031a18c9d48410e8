"""A kernel that gives other bits once in a while, on a card: it is made again until it does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gguf_verify.hosts.choice import HOSTS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.results.calls import Call
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.layers import again
from gguf_verify.rungs.layers.call import OTHER_M
from tests.support.foreign_runs import EXAMPLES, verified

TIMES = 4


class Wavering(ShippedKernel):
    """A kernel of which each fourth product of five tokens has one output with another last bit."""

    products = 0

    def product(self, weights: Weights, x: Any) -> Any:
        y = super().product(weights, x)
        if len(x) == 5 and y.shape[1] > 7:
            self.products += 1
            if self.products % 4 == 0:
                y[3, 7] = np.nextafter(y[3, 7], np.float32(np.inf))
        return y


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU host passes for a card, and products are made again a few times."""
    monkeypatch.setitem(HOSTS, "cpu", replace(HOSTS["cpu"], emulated=False))
    monkeypatch.setattr(again, "_TIMES", TIMES)
    monkeypatch.setattr(again, "_TIMES_APART", 1)


def naive(of: type[ShippedKernel] = ShippedKernel) -> ShippedKernel:
    return of(KERNELS["q8_1_naive"], CpuHost(1))


@pytest.mark.usefixtures("card")
def test_other_bits_once_in_a_while() -> None:
    report = verified(naive(Wavering), "layers", probes="full")
    (rung,) = report.rungs
    (failure,) = rung.failures
    assert "at 5 tokens: the outputs depend on the order in which threads run" in failure.what
    assert "1 of 1280 differ when the product is made again, repetition 3, the first row 7 token 3: " in failure.what
    assert failure.call == Call(kind="again", m=5, n=256, k=256)
    assert rung.diagnosis is not None
    assert any("not deterministic" in line or "depend" in line for line in rung.diagnosis.lines), rung.diagnosis
    assert report.exit_code == 1
    alone = verified(naive(Wavering), "layers", probes="full", only_call=failure.call.id)
    assert [each.call for each in alone.rungs[0].failures] == [failure.call]


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(("name", "times"), [
    ("q8_1_naive", TIMES), ("cuda_q4_0.cu:gemm", 1),
    ("numpy_q4_0.py:gemm", None),
])  # fmt: skip
def test_right_kernels(name: str, times: int | None) -> None:
    """None of a function whose launches are not seen."""
    kernel = naive() if name in KERNELS else open_foreign(f"{EXAMPLES / name}", CpuHost(1))
    report = verified(kernel, "layers", probes="full")
    assert report.exit_code == 0
    assert report.rungs[0].checked.get("products made again") == (times and times * len(OTHER_M))


def test_an_emulated_card_is_asked_for_other_orders() -> None:
    nothing: Any = None
    result = RungResult(name="layers")
    judged: Any = SimpleNamespace(run=SimpleNamespace(kernel=naive(Wavering)), result=result)
    again.check_again(judged, nothing, nothing)
    assert not result.checked
