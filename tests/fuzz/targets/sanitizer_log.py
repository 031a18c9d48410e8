"""The log of NVIDIA's compute-sanitizer, in which names of the kernel's author stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gguf_verify.hosts.compute_sanitizer import TOOLS, found_in
from gguf_verify.support.errors import EnvironmentFault
from tests.fuzz import mutations
from tests.fuzz.target import Target

LOG = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at gemm(unsigned char *)+0x160 in k.cu:6
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f0000000400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f0000000000 of size 1,024 bytes
========= Invalid __shared__ write of size 16 bytes
=========     at 0x160 in k.cu:6:gemm()
=========     by thread (1,2,3) in block (4,5,6)
=========     Address 0x0 is misaligned
========= Uninitialized __shared__ memory read of size 4 bytes
=========     at gemm+0x20 in /a b/inner.cuh:9
=========     Device Frame: gemm+0x10 in k.cu:7
=========     by thread (0,0,0) in block (0,0,0)
========= Error: Race reported between Write access at gemm+0x160 in k.cu:6
=========     and Read access at gemm+0x1b0 in k.cu:9 [16 hazards]
========= Barrier error detected. Divergent thread(s) in warp.
=========     at gemm+0x30 in k.cu:11
=========     by thread (33,0,0) in block (0,0,0)
========= Something new in block (0,0,0)
=========     at gemm+0x30 in k.cu:12
=========     by thread (0,0,0) in block (0,0,0)
========= ERROR SUMMARY: 5 errors
"""


def seeds() -> Iterator[bytes]:
    """A log with every kind of record, and logs that stop or speak of something else."""
    yield LOG.encode()
    for change in (
        ("ERROR SUMMARY: 5 errors", "RACECHECK SUMMARY: 1,024 hazards displayed (1 error, 0 warnings)"),
        ("========= ERROR SUMMARY: 5 errors\n", ""), ("Something new", "Internal Sanitizer Error"), ("0x0 is", "0x is"),
        ("read of size 4", "atomic access of size 4"), ("after the", "before the"), ("1,024", "1,0,"), ("k.cu:6", "6"),
        ("1 bytes after", f"{'9' * 5000} bytes after"), ("5 errors", f"{'9' * 5000} errors"), ("k.cu", "\x1b[31m.cu"),
        ("=========     at gemm", "at gemm"), ("__global__", "__local__"), ("5 errors", ", error"),
    ):  # fmt: skip
        yield LOG.replace(*change).encode()
    yield b"========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 3 errors\n"
    yield b"========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    yield b""


def check(folder: Path, data: bytes) -> None:
    """A log that is not understood is never taken for one without findings, and every finding has a name."""
    text = data.decode("utf-8", "replace")
    for tool in TOOLS:
        try:
            found = found_in(text, tool, lambda size: "weights" if size == 1024 else None)
        except EnvironmentFault:  # the caller escapes what it says
            continue
        if not found:
            assert "SUMMARY: 0" in text or "SUMMARY: ," in text or "SUMMARY: 0" in text.replace(",", "")
        for one in found:
            assert one.kind in (
                "outside", "misaligned", "unset", "race", "divergent", "other",
            )  # fmt: skip
            assert one.words
            assert "\n" not in one.words


TARGET = Target(
    "sanitizer-log", "a log of compute-sanitizer", seeds, check,
    mutations.of_lines(
        ("=========", "=========     ", "Invalid __global__ read of size 1 bytes", " in k.cu:6", "at 0x10",
         "by thread (0,0,0) in block (0,0,0)", "ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards", "Leaked",
         "Race reported between Read access at ", "and Write access at ", "is misaligned", "Unable to", ",", "9" * 30),
    ),
    inputs=500,
)  # fmt: skip
