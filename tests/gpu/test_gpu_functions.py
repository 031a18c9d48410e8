"""CUDA's functions on a GPU, from NVIDIA's headers, against those of the CPU host: every word. Run with -s, it lists
functions that may differ and do. Skipped by name where no GPU can be used."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.hosts import nvrtc
from gguf_verify.hosts.choice import make_host
from tests.support.cuda_functions import CASES, Case, OnCpu, Words, as_numbers, operands, source

pytestmark = pytest.mark.needs("gpu")

N = 1 << 18


def header_folders() -> list[Path]:
    """Folders of CUDA's headers and of those that they include: a toolkit's, or else CuPy's or NVIDIA's."""
    nvcc = shutil.which("nvcc")
    tops = [Path(nvcc).resolve().parent.parent / "include"] if nvcc else []
    tops += [Path("/usr/local/cuda/include")]
    packages = Path(sysconfig.get_paths()["purelib"])
    tops += sorted(packages.glob("nvidia/*/include")) + sorted(packages.glob("cupy/_core/include/cupy/_cuda/cuda-*"))
    found = [top for top in tops if (top / "cuda_bf16.h").is_file()]
    if not found:
        pytest.skip("no cuda_bf16.h on this machine")
    more = [found[0] / "cccl", *sorted(packages.glob("cupy/_core/include/cupy/_cccl/*"))]
    return [found[0], *(folder for folder in more if folder.is_dir())]


@pytest.fixture(scope="module")
def on_card(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """which, a, b, c → uint64[n], computed on the GPU."""
    import cupy

    host: Any = make_host("gpu")
    folder = tmp_path_factory.mktemp("card")
    (folder / "k.cu").write_text(source())
    more = ["--device-int128", *(f"-I{path}" for path in header_folders())]
    cubin, _ = nvrtc.compiled_here(nvrtc.Request(str(folder), "k.cu", f"sm_{host.sm}", {}, more))
    (folder / "k.cubin").write_bytes(cubin)
    kernel = cupy.RawModule(path=str(folder / "k.cubin")).get_function("compute")

    def compute(which: int, a: Words, b: Words, c: Words) -> Words:
        y = cupy.empty(len(a), cupy.uint64)
        given = [cupy.asarray(words) for words in (a, b, c)]
        kernel((256,), (256,), (y, *given, np.int32(len(a)), np.int32(which)))
        return np.asarray(cupy.asnumpy(y))

    return compute


def difference(case: Case, card: Words, cpu: Words, given: tuple[Words, ...]) -> tuple[bool, str]:
    """Whether the words are allowed, and a line about those that differ."""
    at = np.flatnonzero(card != cpu)
    if not len(at):
        return True, ""
    units = None
    if case.kinds[0] in "hbHBf" and case.ulp:
        units = np.abs(as_numbers(card, case.kinds[0]) - as_numbers(cpu, case.kinds[0])).max(axis=1)
        at = np.flatnonzero(units)
        if not len(at):
            return True, ""
    worst = at[np.argmax(units[at])] if units is not None else at[0]
    most = "" if units is None else f", at most {units[worst]} ulp"
    operands_ = ", ".join(f"{int(words[worst]):#x}" for words in given[: len(case.kinds)])
    said = f"{case.name}: {len(at)} of {len(card)} differ{most}; of {operands_} the card makes {int(card[worst]):#x}, "
    allowed = case.ulp < 0 or (units is not None and 0 <= units[worst] <= case.ulp)
    return bool(allowed), said + f"the CPU host {int(cpu[worst]):#x}"


def test_every_function_has_the_bits_of_the_gpu(on_card: Any, tmp_path: Path) -> None:
    on_cpu = OnCpu(tmp_path)
    wrong, same = [], 0
    for which, case in enumerate(CASES):
        given = operands(case.kinds, N, 1)
        right, said = difference(case, on_card(which, *given), on_cpu(case.text, case.kinds, *given), given)
        same += not said
        if said:
            print("may differ" if right else "WRONG", said)
        if not right:
            wrong.append(said)
    print(f"{same} of {len(CASES)} functions have the same words, {len(CASES) - same - len(wrong)} differ as they may")
    assert not wrong, "\n".join([f"{len(wrong)} functions differ:", *wrong])
