"""Short CUDA kernels, built for the CPU host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gguf_verify.hosts.base import Host
from gguf_verify.support.paths import kernel_root

Build = Callable[..., Any]


def with_kernel(folder: Path, source: str, linked: Path | None = None) -> Path:
    """A copy of the kernels' folder in which `k.cu` holds this source.

    Args:
        linked: an earlier copy, whose files the new one shares: none of them may be changed then.
    """
    root = folder / "kernels"
    if linked is None:
        shutil.copytree(kernel_root(), root)
    else:
        shutil.copytree(linked, root, copy_function=os.link)
    (root / "k.cu").write_text('#include "common.cuh"\nextern "C" __global__ ' + source)
    return root


def run(host: Host, kernel: Any, grid: int, block: int, out: np.ndarray, *args: Any) -> np.ndarray:
    """Launch with the output first; the output has the shape and type of `out`."""
    buffer = host.output(out.nbytes)
    uploaded = [host.upload(a) if isinstance(a, np.ndarray) else a for a in args]
    host.launch(kernel, (grid, 1, 1), (block, 1, 1), [buffer, *uploaded])
    return host.download(buffer).view(out.dtype).reshape(out.shape)


WRITE_A_BYTE = "void k(uint8_t* y, int64_t at) { y[at] = 7; }"
