"""Instructions of a kernel's inner loop, counted in the GPU's machine code (SASS), and the resulting roof.

The inner loop is the smallest one that holds the most products. An *output and slice* is the contribution of 32 weights
to one output: 32 products of integers or halves, and the kernel's other operations for them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gguf_verify.support import scratch

#: Values of a slice.
_SLICE = 32
_LANES = 32
#: Warps that start an instruction in a cycle, on a multiprocessor (CUDA Programming Guide, compute capabilities 7.0 to
#: 12.0).
_SCHEDULERS = 4
_LABEL = re.compile(r"^(\.L_\w+):")
_FUNCTION = re.compile(r"^\.text\.(\w+):")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*[\w.]*)(.*?);")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
#: Products of a warpgroup (a quarter of them a warp's), and of a warp: m64nNkK, m16n8kK, m8n8kK.
_OF_GROUP = re.compile(r"GMMA\.64x(\d+)x(\d+)")
_OF_WARP = re.compile(r"[A-Z]MMA\.(16|8)8(\d+)\b")
_FLOATS = ("FFMA", "FADD", "FMUL", "FFMA2", "FADD2", "FMUL2")


@dataclass(frozen=True)
class Loop:
    """The inner loop of a kernel.

    Args:
        instructions: of a warp, in one turn.
        floats: those that add or multiply float32.
        products: multiply-adds of a warp in one turn, on tensor cores or four at a time (`dp4a`).
        depth: values of one output that one instruction multiplies.
    """

    instructions: int
    floats: int
    products: int
    depth: int

    def each(self, count: int, group: int) -> float:
        """Return a lane's instructions for each output and slice, from a number of instructions of a warp. If fewer
        values share a scale than an instruction multiplies, the others are zero."""
        useful = self.products * min(1.0, group / self.depth)
        return count * _LANES * _SLICE / useful

    def roof(self, group: int, multiprocessors: int, ghz: float) -> float:
        """Return the TFLOP/s (two operations a product) if the schedulers start an instruction in every cycle."""
        lanes = multiprocessors * _SCHEDULERS * _LANES * ghz / 1e3
        return 2 * _SLICE * lanes / self.each(self.instructions, group)


def disassembler() -> Path | None:
    """`nvdisasm`, from the environment, CUDA's toolkit, or Triton's package; None if there is none."""
    found = (shutil.which("nvdisasm", path=where) for where in (None, "/usr/local/cuda/bin"))
    given = os.environ.get("NVDISASM") or next(filter(None, found), None)
    if given:
        return Path(given)
    for package, inside in (("triton", "backends/nvidia/bin/nvdisasm"), ("nvidia", "cu13/bin/nvdisasm")):
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            if (path := Path(folder, inside)).is_file():
                return path
    return None


def disassembled(cubin: bytes, program: Path) -> str:
    """Return the disassembly of a cubin. Raises OSError, subprocess.CalledProcessError."""
    with scratch.temporary("sass") as folder:
        path = Path(folder, "code.cubin")
        path.write_bytes(cubin)
        return subprocess.run([program, "-c", path], capture_output=True, text=True, check=True).stdout


def inner_loop(text: str, entry: str) -> Loop | None:
    """Return the inner loop of a kernel in a disassembly; None if none of its loops multiplies by such instructions."""
    names: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    inside = False
    for line in text.splitlines():
        if found := _FUNCTION.match(line):
            inside = found[1] == entry
        elif inside and (found := _LABEL.match(line)):
            labels[found[1]] = len(names)
        elif inside and (found := _INSTRUCTION.match(line)):
            names.append((found[1], found[2]))
    loops = [_counted([name for name, _ in names[a:b]]) for a, b in _loops(names, labels)]
    products = max((loop.products for loop in loops), default=0)
    most = (loop for loop in loops if loop.products == products)
    return min(most, key=lambda loop: loop.instructions, default=None) if products else None


def _loops(names: Sequence[tuple[str, str]], labels: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of loops: from the target of a backward branch to behind the branch."""
    for i, (name, rest) in enumerate(names):
        target = _TARGET.search(rest) if name.startswith("BRA") else None
        if target and labels.get(target[1], i + 1) <= i:
            yield labels[target[1]], i + 1


def _counted(names: Sequence[str]) -> Loop:
    products, depth = 0, 1
    for name in names:
        if found := _OF_GROUP.search(name):
            products, depth = products + 16 * int(found[1]) * int(found[2]), max(depth, int(found[2]))
        elif found := _OF_WARP.search(name):
            products, depth = products + int(found[1]) * 8 * int(found[2]), max(depth, int(found[2]))
        elif name.startswith("IDP.4A"):
            products, depth = products + 4 * _LANES, max(depth, 4)
    floats = sum(name.split(".")[0] in _FLOATS for name in names)
    return Loop(len(names), floats, products, depth)
