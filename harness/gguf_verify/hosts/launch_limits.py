"""Limits of a kernel's launches: the threads of its `__launch_bounds__`, its static shared memory, and its cluster
size.

The cluster size is read from the text. The others are read from the C++ compiler's object of a foreign source (ELF of
64 bits, System V ABI, chapter 4), in which each function and each variable lies in its own section. So a kernel's
shared memory is all that its function reaches by relocations, as ptxas counts it. `__launch_bounds__(N)` becomes N
bytes without effect before the function (`patchable_function_entry`), whose beginning the compiler lists.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..support.errors import EnvironmentFault
from .cuda_text import tokens_of
from .elf import FUNCTION, THREAD_LOCAL, Elf, Section, readable

#: Bytes of static shared memory that CUDA allows, on any GPU.
MOST_STATIC = 49152
#: Bytes of shared memory of a block, static and dynamic, by compute capability (Programming Guide, "Technical
#: Specifications per Compute Capability"), and for those that are not listed.
_MOST_SHARED = {
    "70": 98304, "72": 98304, "75": 65536, "80": 166912, "86": 101376, "87": 166912, "88": 101376, "89": 101376,
    "120": 101376, "121": 101376,
}  # fmt: skip
MOST_SHARED = 232448
#: Registers of a multiprocessor, all of which one block may use.
MOST_REGISTERS = 65536
#: Largest cluster, in thread blocks, that any GPU with clusters runs; more need an attribute of the function.
_MOST_IN_CLUSTER = 8
_LISTED = b"__patchable_function_entries"
#: Ends a library, before the length of the limits.
_MARK = b"gguf-verify limits"


@dataclass(frozen=True)
class LaunchLimits:
    """The launch limits of one kernel.

    Args:
        threads: the maximum in a block that it is compiled for; None: not declared.
        static: bytes of shared memory that it declares.
        largest: the largest variable among these.
        registers: of a thread; None: not known.
        shared: the maximum shared memory of a block, in bytes, on a GPU that it is compiled for.
        line: FILE:LINE of the kernel, or "".
        cluster: thread blocks of a cluster in x, y and z (`__cluster_dims__`); None: not known to have any.
    """

    threads: int | None = None
    static: int = 0
    largest: str = ""
    registers: int | None = None
    shared: int = MOST_SHARED
    line: str = ""
    cluster: tuple[int, int, int] | None = None

    def refused(self, grid: Sequence[int], block: Sequence[int], shared: int) -> str | None:
        """Return why a GPU refuses a launch with this grid, block and dynamic shared memory, or None."""
        found = self._refused(block, shared) or self._refused_cluster(grid)
        return None if found is None else f"{found} ({self.line})" if self.line else found

    def _refused_cluster(self, grid: Sequence[int]) -> str | None:
        if self.cluster is None:
            return None
        said = "×".join(map(str, self.cluster))
        if not 1 <= math.prod(self.cluster) <= _MOST_IN_CLUSTER:
            return f"its __cluster_dims__ are {said} thread blocks, and a cluster has 1 to {_MOST_IN_CLUSTER}"
        if any(blocks % of for blocks, of in zip(grid, self.cluster, strict=True)):
            blocks = "×".join(map(str, grid))
            return f"its grid of {blocks} thread blocks is no multiple of its __cluster_dims__, {said}"
        return None

    def _refused(self, block: Sequence[int], shared: int) -> str | None:
        threads = block[0] * block[1] * block[2]
        if self.threads is not None and threads > self.threads:
            return f"its block has {threads:,} threads, and its __launch_bounds__ allows {self.threads:,}"
        if self.static + shared > self.shared:
            parts = f"{self.static:,} bytes static and {shared:,} dynamic"
            return f"its block has {parts} shared memory, and the GPU gives a block {self.shared:,}"
        if self.registers is not None:
            taken = -(-self.registers // 8) * 8 * 32 * -(-threads // 32)  # a warp takes them in units of 256
            if taken > MOST_REGISTERS:
                return (
                    f"its block of {threads:,} threads needs {taken:,} registers ({self.registers} each), and the GPU "
                    f"has {MOST_REGISTERS:,}; give it __launch_bounds__({threads})"
                )
        return None


def most_shared(architectures: Sequence[str]) -> int:
    """Return the largest maximum of a block's shared memory on these GPUs, in bytes."""
    return max((_MOST_SHARED.get(sm, MOST_SHARED) for sm in architectures), default=MOST_SHARED)


def with_limits(library: bytes, compiled: bytes) -> bytes:
    """Append to a library the limits of the kernels in the object that it was linked from.

    A loader reads no further than the library. Raises EnvironmentFault.
    """
    with readable("object file"):
        said = as_json(_limits_of_kernels(Elf(compiled)))
    return library + said + _MARK + struct.pack("<Q", len(said))


def limits_of(
    library: bytes, entries: Mapping[str, str], sources: Path, shared: int = MOST_SHARED
) -> dict[str, LaunchLimits]:
    """Return the limits that `with_limits` noted for the kernels of a library.

    Args:
        entries: name of the kernel in the library → its name.
        sources: the folder of their sources.
        shared: the maximum shared memory of a block, in bytes.

    Raises EnvironmentFault if one has more static shared memory than CUDA allows, as ptxas does.
    """
    noted: dict[str, LaunchLimits] = {}
    end, made = len(library) - 8, {}
    if end >= 0 and library[:end].endswith(_MARK):
        (length,), begin = struct.unpack_from("<Q", library, end), end - len(_MARK)
        noted = from_json(library[max(0, begin - length) : begin])
    for symbol, entry in entries.items():
        name = re.escape(entry.partition("<")[0].rpartition("::")[2])
        line = _line_of(sources, rf"__global__[^;{{}}]{{0,400}}?\b{name}\s*\(")
        limits = noted.get(f"{symbol}_launch", LaunchLimits())
        limits = replace(limits, shared=shared, line=line, cluster=_cluster_of(sources, name))
        if limits.static > MOST_STATIC:
            where = _line_of(sources, rf"__shared__[^;]{{0,400}}?\b{re.escape(limits.largest)}\b") or line
            raise EnvironmentFault(
                f"{entry} has {limits.static:,} bytes of static shared memory, the most in {limits.largest} ({where}), "
                f"and CUDA allows {MOST_STATIC:,}: declare it extern, and its bytes by `shared`"
            )
        made[symbol] = limits
    return made


def as_json(limits: Mapping[str, LaunchLimits]) -> bytes:
    """Serialize limits for the process that launches the kernels."""
    return json.dumps({symbol: asdict(of) for symbol, of in limits.items()}).encode()


def from_json(said: bytes) -> dict[str, LaunchLimits]:
    """Parse the result of `as_json`."""
    return {
        symbol: LaunchLimits(**{**of, "cluster": tuple(of["cluster"]) if of.get("cluster") else None})
        for symbol, of in json.loads(said).items()
    }


def files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and below it, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _line_of(folder: Path, pattern: str) -> str:
    """Return FILE:LINE of the first match in the sources of a folder, or ""."""
    for path in files_below(folder):
        if found := re.search(pattern, text := path.read_text(errors="replace"), re.S):
            return f"{path.name}:{text.count(chr(10), 0, found.end()) + 1}"
    return ""


def _cluster_of(folder: Path, name: str) -> tuple[int, int, int] | None:
    """Return the `__cluster_dims__` of a kernel in the sources of a folder.

    None if it has none, or if their values are neither numbers nor names of numbers in the same file.
    """
    declared = r"__global__(?:(?!__global__)[^;{}]){0,400}?__cluster_dims__\s*\(([^();{}]{1,200})\)"
    for path in files_below(folder):
        if "__cluster_dims__" not in (text := path.read_text(errors="replace")):
            continue
        text = "\n".join(token.text for token in tokens_of(text))  # without comments
        if found := re.search(rf"{declared}(?:(?!__global__)[^;{{}}]){{0,400}}?\b{name}\s*\(", text, re.S):
            values = [_number(text, value.strip()) for value in found[1].split(",")]
            x, y, z = (*values, 1, 1)[:3]
            return None if x is None or y is None or z is None else (x, y, z)
    return None


def _number(text: str, value: str) -> int | None:
    """Return a number, or the value of a macro or a constant of that name."""
    if re.fullmatch(r"[A-Za-z_]\w*", value):
        macro = rf"^[ \t]*#[ \t]*define[ \t]+{value}[ \t]+\(?(\w+)\)?[ \t]*(?:/[/*].*)?$"
        given = rf"{macro}|\bconst\w*\b[^;{{}}()]*\b{value}\s*[={{]\s*(\w+)\s*}}?\s*[;,]"
        all_ = {found[1] or found[2] for found in re.finditer(given, text, re.M)}
        value = all_.pop() if len(all_) == 1 else ""
    found = re.fullmatch(r"(\d+)[uUlL]*", value)
    return None if found is None else int(found[1])


def _limits_of_kernels(of: Elf) -> dict[str, LaunchLimits]:
    reaches: dict[int, set[int]] = {}
    bounded: dict[int, int] = {}  # section → where its function's launch bounds begin
    for section, where, place in of.relocations():
        if of.sections[section].name == _LISTED:
            bounded[where] = place
        else:
            reaches.setdefault(section, set()).add(where)
    bounds = {
        where: value - bounded[where]
        for _, kind, where, value, _ in of.symbols
        if kind == FUNCTION and where in bounded and value > bounded[where]
    }
    out = {}
    for name, kind, where, _, _ in of.symbols:
        if kind == FUNCTION and name.endswith(b"_launch") and where:
            all_ = _reached(where, reaches)
            threads = [bounds[w] for w in all_ if w in bounds]
            shared = [of.sections[w] for w in all_ if of.sections[w].flags & THREAD_LOCAL]
            out[name.decode("ascii", "replace")] = LaunchLimits(min(threads, default=None), *_static(shared))
    return out


def _reached(start: int, reaches: dict[int, set[int]]) -> set[int]:
    found, left = {start}, [start]
    while left:
        new = reaches.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def _static(shared: Sequence[Section]) -> tuple[int, str]:
    """Return the bytes of static shared memory in these sections, and the largest variable."""
    own = [section for section in shared if b"11cuda_on_cpu" not in section.name]  # not the emulator's
    static = 0
    for section in sorted(own, key=lambda s: -s.alignment):
        static = -(-static // max(1, section.alignment)) * max(1, section.alignment) + section.size
    return static, max(own, key=lambda s: s.size).variable if own else ""
