"""Rungs whose exact products are computed on a device: the verdict, the counts and what is wrong are those of NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gguf_verify import verify
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs import run as run_module
from gguf_verify.rungs import sampling
from gguf_verify.rungs.opening import open_run
from gguf_verify.semantics.cuda import NoDefinition
from gguf_verify.support.errors import UsageError
from gguf_verify.support.threads import beside, is_over
from gguf_verify.verification import compiling
from tests.support.processes import wait_until
from tests.support.strict_arrays import StrictDevice
from tests.support.tools import FIXTURES


class Counting(StrictDevice):
    """Counts the rows that it is asked for."""

    def __init__(self) -> None:
        super().__init__(rows_at_a_time=50, sampled=1)
        self.asked = 0

    def rows(self, values: int, outputs: int) -> int:
        self.asked += 1
        return super().rows(values, outputs)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    monkeypatch.setattr(run_module, "arrays_for", lambda *_: (made, "a double"))
    monkeypatch.setattr(run_module, "_WORTH_A_DEVICE", 0)
    return made


def run(model: str, rungs: tuple[str, ...] = ("blocks", "layers")) -> Report:
    options = Options(probes="brief", n_predict=1, progress=False, tensor="blk.0.attn_q", threads=1)
    return verify(FIXTURES / model, "q8_1_naive", "cpu", rungs, options)


def assert_same(there: Report, here: Report) -> None:
    """What was counted and what is wrong are the same, and how near outputs came to their bounds: those of a screen are
    a little smaller."""
    for got, expected in zip(there.rungs, here.rungs, strict=True):
        assert (got.name, got.verdict, got.checked) == (expected.name, expected.verdict, expected.checked)
        assert [f.what for f in got.failures] == [f.what for f in expected.failures]
        for who, worst in expected.worst.items():
            assert got.worst[who].utilisation == pytest.approx(worst.utilisation, rel=1e-4)


def test_a_model_is_verified_as_by_numpy(request: pytest.FixtureRequest) -> None:
    by_numpy = run("tiny-Q5_1.gguf")
    device = request.getfixturevalue("device")
    there = run("tiny-Q5_1.gguf")
    assert device.asked
    assert (there.environment.exact_on, by_numpy.environment.exact_on) == ("a double", "NumPy")
    assert there.verdict == "verified"
    assert_same(there, by_numpy)


def test_steps_are_taken_ahead(device: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that products of a type take, on rows of a matrix of its own; what fails there would never be told."""
    failed = list[BaseException]()

    @contextmanager
    def told(*_: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            failed.append(error)

    monkeypatch.setattr(compiling, "suppress", told)
    options = Options(probes="brief", progress=False, threads=1)
    with open_run(FIXTURES / "tiny-Q5_1.gguf", "q8_1_naive", "cpu", options) as opened:
        compiling._take_steps(opened, device)
        taken = device.asked

        def too_late() -> None:
            assert wait_until(is_over)
            compiling._take_steps(opened, device)

        with beside(too_late) as result:
            pass
        result()
        opened.close()
    assert (failed, device.asked) == ([], taken)
    assert taken >= 5  # products, combinations and results by the kernel's definition, and by llama.cpp's


def test_no_step_is_taken_that_takes_much_memory_or_raises(device: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may claim a matrix of one row, and llama.cpp's definition may not be known."""

    def unknown(*_: object) -> None:
        raise NoDefinition("nothing describes it")

    options = Options(probes="brief", progress=False, threads=1)
    with open_run(FIXTURES / "tiny-Q5_1.gguf", "q8_1_naive", "cpu", options) as opened:
        with monkeypatch.context() as small:
            small.setattr(compiling, "_MOST_STEPS", 1000)
            compiling._take_steps(opened, device)
        assert device.asked == 0
        monkeypatch.setattr(opened.backend, "definition", unknown)
        compiling._take_steps(opened, device)
        assert device.asked
        opened.close()


def test_a_wrong_kernel_fails(device: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    from gguf_verify.kernels.shipped import ShippedKernel

    product = ShippedKernel.product

    def wrong(self: ShippedKernel, weights: Any, x: np.ndarray) -> np.ndarray:
        y = product(self, weights, x)
        y[-1, 3:4] *= 1.0001
        return y

    monkeypatch.setattr(ShippedKernel, "product", wrong)
    there = run("tiny-Q4_0.gguf", rungs=("layers",))
    assert there.verdict == "mismatch"
    own = next(f for f in there.rungs[0].failures if f.what.startswith("kernel: "))
    assert (own.row, own.culprit) == (3, "kernel")
    assert own.got == pytest.approx(own.expected * 1.0001, rel=1e-5)
    assert own.utilisation > 1 or "bits of the declared order" in own.what


def test_the_host_decides() -> None:
    from gguf_verify.hosts.cupy_arrays import arrays_for

    assert arrays_for("auto", "cpu", 0) == arrays_for("cpu", "gpu", 0) == (None, "NumPy")
    with pytest.raises(UsageError):
        arrays_for("tpu", "gpu", 0)


def test_samples_and_combinations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large matrices are sampled, and their combinations are computed on the device too."""
    monkeypatch.setattr(sampling, "SMALL", 1 << 12)
    monkeypatch.setattr(sampling, "_SAMPLE", 1 << 12)
    monkeypatch.setattr(sampling, "ROWS", 4)
    by_numpy = run("tiny-Q4_0.gguf")
    device = request.getfixturevalue("device")
    there = run("tiny-Q4_0.gguf")
    assert device.asked
    assert "; sampled: misses errors above" in there.words
    assert_same(there, by_numpy)
    for got, expected in zip(there.rungs, by_numpy.rungs, strict=True):
        assert got.sampled is not None
        assert expected.sampled is not None
        assert (got.sampled.of, got.sampled.alone) == (expected.sampled.of, expected.sampled.alone)
