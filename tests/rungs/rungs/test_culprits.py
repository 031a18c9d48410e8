"""Who is at fault, decided by real verifications of one small matrix: at least three cases of each culprit, and two at
once. What the diagnosis says follows it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify import Oracle, Shape, kernel
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts import compiler
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.kinds import gpu
from gguf_verify.kernels.interface import Candidate, Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.semantics.values import exact_weights
from gguf_verify.support.errors import Culprit, EnvironmentFault, KernelFault, MalformedFile, NothingToVerify
from gguf_verify.verification import verify
from gguf_verify.verification.climb import Event, RungEnds
from tests.support.tools import FIXTURES, ROOT, edited_model, patched, patched_block, write_model

Floats = npt.NDArray[np.float32]
Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
FOREIGN = ROOT / "tests" / "support" / "foreign_kernels.py"
TENSOR = "blk.0.attn_k.weight"
NAN, INFINITE = np.float16(np.nan).tobytes(), np.float16(np.inf).tobytes()


def run(path: Path, of: Any, *rungs: str, **options: Any) -> Report:
    usual: dict[str, Any] = {"prompt": "The", "n_predict": 1, "tensor": r"blk\.0\.attn_k\.", "probes": "brief"}
    return verify(path, of, CpuHost(1), rungs, Options(progress=False, **(usual | options)))


def right() -> ShippedKernel:
    return ShippedKernel(KERNELS["q8_1_naive"], CpuHost(1))


class Wrong(ShippedKernel):
    """The right kernel, and what becomes of its outputs."""

    def __init__(self, change: Callable[[Floats], Floats]) -> None:
        super().__init__(KERNELS["q8_1_naive"], CpuHost(1))
        self._change = change

    def gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> Floats:
        return self._change(super().gemm(weights, x))

    def product(self, weights: Weights, x: Floats) -> Floats:
        return self._change(super().product(weights, x))


def doubled(y: Floats) -> Floats:
    return y * np.float32(2)


def nothing(y: Floats) -> Floats:
    return y * np.float32(np.nan)


def crashing(_: Floats) -> Floats:
    raise KernelFault("the kernel crashed")


def one_wrong(y: Floats) -> Floats:
    y = y.copy()
    y[:, -1:] += np.float32(1)
    return y


def scaled_norm(folder: Path, scale: float) -> Path:
    """The activations of the first block are so large."""
    with open_model(Q4_0) as model:
        offset = model.tensors["blk.0.attn_norm.weight"].offset
    return patched(Q4_0, folder / "big.gguf", offset, np.full(256, scale, np.float32).tobytes())


def with_block(folder: Path, at: int, new: bytes) -> Path:
    return patched_block(Q4_0, folder / "block.gguf", TENSOR, 9, 3, at, new)


def killing(after: int) -> Candidate:
    """A right kernel; at a product, the processes of llama.cpp that the run has started are killed."""
    calls, before = [0], _llamas()

    def kill(y: Floats) -> Floats:
        calls[0] += 1
        if calls[0] == after:
            for pid in _llamas() - before:
                with contextlib.suppress(ProcessLookupError):  # what keeps it has ended it
                    os.kill(pid, signal.SIGKILL)
        return y

    return Wrong(kill)


def _llamas() -> set[int]:
    return {int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _is_llama(p)}


def _is_llama(process: Path) -> bool:
    try:
        parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
        return parent == os.getpid() and b"gguf_verify.llama" in (process / "cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False


def unloadable(folder: Path) -> Path:
    """A GGUF file that llama.cpp does not load."""
    rows = np.zeros((64, 36), np.uint8)
    return write_model(folder / "test.gguf", {TENSOR: (rows, "Q4_0")})


def oracle(values: Callable[[Floats], npt.NDArray[np.float64]]) -> Callable[..., Any]:
    @kernel(formats=["Q4_0"], semantics=Oracle(activations=values))
    def by_oracle(w: Any, x: Floats, shape: Shape) -> Floats:
        fmt = FORMATS[shape.format]
        blocks = np.ascontiguousarray(w).reshape(shape.n, -1, fmt.block_bytes)
        return x @ exact_weights(fmt, blocks).reshape(shape.n, shape.k).astype(np.float32).T

    return by_oracle


def raising(_: Floats) -> npt.NDArray[np.float64]:
    raise ValueError("no idea")


@kernel(formats=["Q4_0"], semantics="q8_1")
def never(w: Any, x: Any, shape: Shape) -> Floats:
    raise AssertionError


def no_compiler() -> str:
    raise EnvironmentFault("no C++ compiler was found")


def without(module: Any, name: str, answer: Callable[[], str], host: Any) -> Report:
    """A run on a machine that lacks something."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, answer)
        options = Options(prompt="The", n_predict=1, tensor=TENSOR, probes="brief", progress=False)
        return verify(Q4_0, "q8_1_naive", host, ("layers",), options)


def changed(folder: Path) -> Report:
    path = Path(shutil.copy(Q4_0, folder / "m.gguf"))
    with open_model(path) as model:
        last = model.tensors[TENSOR].offset
    usual = Options(prompt="The", n_predict=1, tensor=r"blk\.0\.attn_k\.", probes="brief", progress=False)

    def told(event: Event) -> None:
        if isinstance(event, RungEnds):
            patched(path, path, last, b"\1\2\3\4")

    return verify(path, right(), rungs=("blocks",), options=usual, told=told)


#: Name → who is at fault, and the report.
CASES: dict[str, tuple[set[Culprit], Callable[[Path], Report]]] = {
    "scale is NaN": ({"file"}, lambda f: run(with_block(f, 0, NAN), right(), "blocks", "layers")),
    "scale is infinite": ({"file"}, lambda f: run(with_block(f, 0, INFINITE), right(), "bytes", "layers")),
    "scale is NaN, in bytes": ({"file"}, lambda f: run(with_block(f, 0, NAN), right(), "bytes")),
    "s beyond a half": ({"definition"}, lambda f: run(scaled_norm(f, 1e5), right(), "layers")),
    "s beyond a half, in blocks": ({"definition"}, lambda f: run(scaled_norm(f, 1e5), right(), "blocks")),
    "d beyond a half": ({"definition"}, lambda f: run(scaled_norm(f, 1e8), right(), "layers")),
    "llama.cpp dies": ({"llama.cpp"}, lambda f: run(Q4_0, killing(1), "layers")),
    "llama.cpp refuses": ({"llama.cpp"}, lambda f: run(unloadable(f), right(), "layers")),
    "llama.cpp hangs": ({"llama.cpp"}, lambda f: run(Q4_0, right(), "layers", time_limit=0.02)),
    "outputs doubled": ({"kernel"}, lambda f: run(Q4_0, Wrong(doubled), "layers")),
    "outputs NaN": ({"kernel"}, lambda f: run(Q4_0, Wrong(nothing), "blocks", "layers")),
    "kernel crashes": ({"kernel"}, lambda f: run(Q4_0, Wrong(crashing), "blocks", "layers", "tokens")),
    "oracle raises": ({"oracle"}, lambda f: run(Q4_0, oracle(raising), "layers")),
    "oracle is not finite": ({"oracle"}, lambda f: run(Q4_0, oracle(lambda x: x.astype(float) / 0.0), "layers")),
    "oracle of another product": (
        {"oracle", "kernel"}, lambda f: run(Q4_0, oracle(lambda x: -3.0 * x.astype(float)), "layers"),
    ),
    "file changes": ({"environment"}, changed),
    "never called": ({"coverage"}, lambda f: run(FIXTURES / "tiny-F16.gguf", never, "layers")),
    "type not covered": ({"coverage"}, lambda f: run(FIXTURES / "tiny-Q5_1.gguf", never, "layers")),
    "checks that no tool makes": (
        {"coverage"}, lambda f: run(Q4_0, f"{FOREIGN}:right", "layers", sanitize=True),
    ),
    "no GPU": ({"environment"}, lambda f: without(gpu, "gpu_fault", lambda: "CUDA sees no device", "gpu")),
    "no compiler": ({"environment"}, lambda f: without(compiler, "compiler", no_compiler, CpuHost(1))),
    "file and kernel": (
        {"file", "kernel"}, lambda f: run(with_block(f, 0, NAN), Wrong(one_wrong), "bytes", "layers"),
    ),
    "definition and kernel": (
        {"definition", "kernel"}, lambda f: run(scaled_norm(f, 1e5), Wrong(one_wrong), "blocks", "layers"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_who_is_at_fault(tmp_path: Path, case: str) -> None:
    expected, build = CASES[case]
    try:
        report = build(tmp_path)
    except (EnvironmentFault, MalformedFile, NothingToVerify) as error:  # of the whole run
        if {error.culprit} != expected:
            raise
        return
    assert set(report.culprits) == expected, (report.culprits, [f.what for _, f in report.failures])
    assert report.exit_code in (1, 3, 5)
    for rung in report.rungs:
        if rung.diagnosis is not None:
            assert rung.diagnosis.culprit in expected
            if "kernel" not in expected:
                assert rung.diagnosis.faults == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [("attention.layer_norm_rms_epsilon", float("nan")), ("rope.freq_base", 0.0), ("context_length", 0)],
)
def test_a_key_without_a_meaning_is_the_files_fault(key: str, value: float, tmp_path: Path) -> None:
    """llama.cpp's process would abort on the first, and compute NaN with the second."""
    path = edited_model(Q4_0, tmp_path / "m.gguf", {f"llama.{key}": value})
    report = run(path, right(), "layers", "tokens")
    assert (report.verdict, set(report.culprits)) == ("not everything verified", {"file"})
    for rung in report.rungs:
        assert not rung.failures
        assert f"in llama.{key}; expected " in rung.unverified[0].why
