"""What several tests need: altered copies of the kernels and of models."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.container import open_model
from harness.formats import BlockFormat
from harness.hosts import CpuHost
from harness.hosts.base import kernel_root
from harness.kernels import KERNELS, Kernel, Weights

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "fixtures"

#: llama.cpp's file types (`enum llama_ftype`) of the covered formats.
FTYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7}


def altered_kernel(folder: Path, name: str, file: str, old: str, new: str) -> Kernel:
    """A kernel built from a copy of the sources in which `old` reads `new`; the text must be there."""
    root = folder / "kernels"
    shutil.copytree(kernel_root(), root)
    source = (root / file).read_text()
    assert old in source, f"{file} no longer holds what this test alters"
    (root / file).write_text(source.replace(old, new))
    return Kernel(KERNELS[name], CpuHost(1), root)


class TamperedKernel(Kernel):
    """Computes rightly, but on weights of which one block differs from the file's."""

    def __init__(self, name: str, original: bytes, altered: bytes) -> None:
        super().__init__(KERNELS[name], CpuHost(1))
        self._original = np.frombuffer(original, np.uint8)
        self._altered = np.frombuffer(altered, np.uint8)

    def upload(self, fmt: BlockFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        blocks = rows.reshape(-1, fmt.block_bytes).copy()
        if fmt.block_bytes == len(self._original):
            blocks[(blocks == self._original).all(axis=1)] = self._altered
        return super().upload(fmt, blocks.reshape(rows.shape))


def block_bytes(path: Path, tensor: str, row: int, block: int) -> bytes:
    """A block as it lies in the file."""
    with open_model(path) as model:
        t = model.tensors[tensor]
        at = t.block_offset(row, block)
        return path.read_bytes()[at : at + t.type.block_bytes]


def patched(source: Path, target: Path, offset: int, new: bytes) -> Path:
    """A copy of a file with some bytes replaced."""
    content = bytearray(source.read_bytes())
    content[offset : offset + len(new)] = new
    target.write_bytes(content)
    return target


def patched_block(source: Path, target: Path, tensor: str, row: int, block: int, at: int, new: bytes) -> Path:
    """A copy of a model with bytes of one block replaced, from byte `at` of the block."""
    with open_model(source) as model:
        offset = model.tensors[tensor].block_offset(row, block)
    return patched(source, target, offset + at, new)
