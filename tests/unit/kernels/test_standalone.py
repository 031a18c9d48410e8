"""Shipped kernels as headers for programs of others."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.cli import main
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts import nvcc
from gguf_verify.hosts.cpu_host import Buffer, CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.standalone import Exported
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.paths import CHECKOUT
from tests.support.needs import NEEDS
from tools.measure.bench.matrices import random_rows

EXAMPLE = CHECKOUT / "examples" / "standalone"
EXPORT = ["export-kernel", "q8_1_decode", "-M", "4", "-N", "1000", "-K", "2048"]


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_one_text(name: str) -> None:
    spec = KERNELS[name]
    fmt = next(f for f in FORMATS.values() if f.weights and spec.covers(f))
    exported = Exported.of(spec, fmt, 20, 300, 1024, "90")
    text = exported.text("mine")
    assert set(re.findall(r"#include (.*)", text)) == {"<cuda_runtime.h>", "<cstddef>", "<cstdint>"}
    assert not {*re.findall(r"#define (\w+)", text)} - {*re.findall(r"#undef (\w+)", text)}
    assert "cuda_on_cpu.hpp" not in text
    assert 'extern "C" __global__' not in text
    assert "namespace gguf::mine {" in text
    assert ("inline cudaError_t pack(" in text) == (exported.spec.launch.layout != "file")
    assert text.count("<<<") >= 1
    assert exported.text() != text
    assert exported.name in exported.text()


CALL = re.compile(r"(part_\d+)::(\w+)<<<dim3\((.*?)\), dim3\((.*?)\), (\d+), stream>>>\((.*)\);")
POINTER = re.compile(r"Pointer\{(?:\(uint8_t\*\))?(\w+)(?: \+ (\d+))?\}")


def launched(function: str, exported: Exported, memory: dict[str, Any], host: CpuHost) -> None:
    """What a function of a header launches, on the CPU host."""
    parts = {f"part_{i}": source for i, source in enumerate(exported.sources())}
    for part, entry, grid, block, shared, args in CALL.findall(function):
        given: list[Any] = []
        for arg in args.split(", "):
            if pointer := POINTER.fullmatch(arg):
                given.append(Buffer(memory[pointer[1]][int(pointer[2] or 0) :], arg))
            else:
                kind, value = re.fullmatch(r"\((\w+)_t\)(-?\d+)", arg).groups()
                given.append(np.dtype(kind).type(int(value)))
        source = parts[part]
        kernel = host.load(source.root, source.file, entry, source.defines, source.target)
        host.launch(kernel, three(grid), three(block), given, int(shared))


def three(sizes: str) -> tuple[int, int, int]:
    x, y, z = map(int, sizes.split(", "))
    return x, y, z


@pytest.mark.parametrize(("name", "kind", "m"), [("q8_1_decode", "Q4_K", 2), ("q8_1_dp4a", "Q4_1", 3)])
def test_the_functions_launch_what_the_kernel_launches(name: str, kind: str, m: int) -> None:
    fmt, n, k = FORMATS[kind], 37, 512
    exported, host = Exported.of(KERNELS[name], fmt, m, n, k, "90"), CpuHost(1)
    text, rows = exported.text(), random_rows(fmt, n, k, 0)
    sizes = {what: int(value) for what, value in re.findall(r"(\w+)_BYTES = (\d+)", text)}
    assert sizes["WEIGHT"] == rows.nbytes
    x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    memory = {what: np.full(size, 255, np.uint8) for what, size in
              (("packed", sizes["PACKED"]), ("scratch", sizes["SCRATCH"]), ("y", 4 * m * n))}  # fmt: skip
    memory |= {"weights": rows.reshape(-1), "x": x.reshape(-1).view(np.uint8)}
    pack, _, multiply = text.partition("inline cudaError_t multiply(")
    if sizes["PACKED"]:
        launched(pack.partition("inline cudaError_t pack(")[2], exported, memory, host)
        memory["weights"] = memory["packed"]
    launched(multiply, exported, memory, host)
    kernel = ShippedKernel(KERNELS[name], host)
    expected = kernel.product(kernel.upload(fmt, rows), x)
    assert memory["y"].tobytes() == expected.tobytes()


def test_what_cannot_be_exported() -> None:
    with pytest.raises(UsageError, match="K is a multiple of 256 for Q4_K"):
        Exported.of(KERNELS["q8_1_naive"], FORMATS["Q4_K"], 1, 1, 32, "90")
    with pytest.raises(UsageError, match="no GPU can launch that many thread blocks"):
        Exported.of(KERNELS["q8_1_mma"], FORMATS["Q4_0"], 1 << 40, 1 << 20, 32, "90").text()
    with pytest.raises(EnvironmentFault, match="needs a GPU of sm_90a; this one is sm_80"):
        Exported.of(KERNELS["q8_1_wgmma"], FORMATS["Q4_0"], 1, 1, 32, "80")


def test_a_shape_beyond_int64_is_refused() -> None:
    for m, n, k in ((10**20, 1, 32), (1, 10**20, 32), (1 << 31, 1 << 30, 32)):
        with pytest.raises(UsageError, match="no GPU can address the arrays of M×N×K"):
            Exported.of(KERNELS["q8_1_wgmma"], FORMATS["Q4_0"], m, n, k, "90")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["export-kernel", "q8_1", "--type", "Q4_0", "-M", "512", "-N", "256", "-K", "64", "--arch", "80"]
    assert main(words) == 0
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"q8_1_\w+_q4_0_512x256x64\.cuh", path.name)
    assert "arch=compute_80,code=sm_80" in path.read_text()
    path.write_text("mine")
    assert main(words) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert main([*words, "--name", "a b"]) == 2
    assert "--name must be a C++ identifier, not 'a b'" in capsys.readouterr().err
    assert main([*words[:-1], "sm_80"]) == 2
    assert "--arch must be a compute capability such as 80, not 'sm_80'" in capsys.readouterr().err


def on_card(program: Path) -> None:
    """Run it: its outputs are right, or there is no GPU, which is its exit code 2."""
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if NEEDS["gpu"].fault() else 0), done.stderr + done.stdout


@pytest.mark.needs("nvcc")
def test_two_types_in_one_unit_by_nvcc(tmp_path: Path) -> None:
    for kind in ("Q4_0", "Q4_K"):
        name = kind.lower()
        assert main([*EXPORT, "--type", kind, "--name", name, "-o", str(tmp_path / f"{name}.cuh")]) == 0
    words = ["-std=c++17", "-fmad=false", "-gencode", "arch=compute_90,code=sm_90", f"-I{tmp_path}"]
    subprocess.run([nvcc.path(), *words, EXAMPLE / "main.cu", "-o", tmp_path / "standalone"], check=True)
    on_card(tmp_path / "standalone")


@pytest.mark.needs("nvcc", "cmake")
def test_the_example_by_cmake(tmp_path: Path) -> None:
    command = Path(sysconfig.get_path("scripts"), "gguf-verify")
    given = [f"-DCMAKE_CUDA_COMPILER={nvcc.path()}", f"-DGGUF_VERIFY={command}"]
    subprocess.run(["cmake", "-S", EXAMPLE, "-B", tmp_path, *given], check=True)
    subprocess.run(["cmake", "--build", tmp_path], check=True)
    on_card(tmp_path / "standalone")
