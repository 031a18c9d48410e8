"""Findings of a checked build in words, with the lines of the source."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..support.errors import KernelFinding
from .compiler import source_lines

#: `cuda_on_cpu::Kind`.
_KINDS = {
    1: "race", 2: "outside", 3: "unset", 4: "misaligned", 5: "overflow", 6: "divergent", 7: "input", 8: "unfenced",
    9: "shift", 10: "division", 11: "no value", 12: "left out", 13: "mask", 14: "operand",
    15: "assumption", 16: "past variable",
}  # fmt: skip
#: Names of some of them in a report.
_NAMES = {"unfenced": "race", "no value": "mask", "left out": "mask", "past variable": "outside"}
#: Parts of paths of the emulator's inlined functions.
_OURS = ("/emulator/", "/emulator-", "/cuda-headers/", "/async.cuh")
#: `cuda_on_cpu::Does`.
_DOES = {0: "reads", 1: "writes", 2: "does an atomic operation"}
_MOST = 3
_A_COPY = 1 << 16


@dataclass(frozen=True)
class Found:
    """One finding: its kind, a description in one line, and the source lines in it.

    `unset` describes a read that is only a fault if an output depends on it: "shared memory at FILE:LINE"; ""
    otherwise.
    """

    kind: str
    words: str
    lines: tuple[str, ...]
    unset: str = ""


def _line(chain: Sequence[str]) -> str:
    """Return a place for the reader: the innermost line outside the emulator, and the kernel's own in another file."""
    names = [Path(place).name for place in chain]
    outside = [n for n, place in zip(names, chain, strict=True) if not any(o in place for o in _OURS)] or names
    if not outside:
        return "an unknown line"
    inner, outer = outside[0], outside[-1]
    return inner if inner.split(":")[0] == outer.split(":")[0] else f"{inner} (for {outer})"


def _thread(block: int, thread: int) -> str:
    return "an asynchronous copy" if thread >= _A_COPY else f"thread {thread} of block {block}"


def found(raw: Any, library: str | Path, place: Callable[[int], str]) -> Found | None:
    """Describe one finding of a launch (`cuda_on_cpu::Finding`); None if the lines show that it is none.

    Args:
        library: the checked library, by its name for `source_lines`.
        place: describes the place of an address.
    """
    kind = _KINDS[raw.kind]
    two = kind in ("race", "unfenced", "divergent", "left out") or (kind == "mask" and not raw.text)
    lines = [_line(chain) for chain in source_lines(library, list(raw.at)[: 2 if two else 1])]
    who = _thread(raw.block[0], raw.thread[0])
    does, then = (_DOES[does] for does in raw.writes)
    if two:
        other = _thread(raw.block[1], raw.thread[1])
    one_block, text = raw.block[0] == raw.block[1], raw.text.decode(errors="replace")
    # The text is the reason why two atomic operations are a race.
    why = text or ("with no barrier between them" if one_block else "and nothing orders the two thread blocks")
    if kind == "divergent" and lines[0] == lines[1] and lines[0] != "an unknown line":
        return None
    words = {
        "race": lambda: f"data race: {who} {does} at {lines[0]} and {other} {then} at {lines[1]}, {why}",
        "unfenced": lambda: (
            f"data race: {who} {does} at {lines[0]} what a bulk copy that begins at {lines[1]} overwrites, with no "
            "fence.proxy.async and no arrival at an mbarrier between them"
        ),
        "outside": lambda: f"{who} {does} {raw.size} bytes outside its buffers at {lines[0]}: {place(raw.address)}",
        "unset": lambda: (
            f"{who} uses shared memory at {lines[0]} that nothing has written: no thread, and no copy "
            "that was waited for"
        ),
        "misaligned": lambda: (
            f"misaligned access at {lines[0]}: {_type(raw.text)} at an address that is no multiple of {raw.size}, "
            f"{place(raw.address)}"
        ),
        "overflow": lambda: f"signed overflow at {lines[0]}: a {text} does not fit its type",
        "divergent": lambda: (
            f"divergent barrier: threads {raw.thread[0]} and {raw.thread[1]} of one block wait at different barriers, "
            f"{lines[0]} and {lines[1]}"
        ),
        "input": lambda: f"{who} writes into an input at {lines[0]}: {place(raw.address)}",
        "shift": lambda: (
            f"undefined shift at {lines[0]}: a {raw.size}-bit value is shifted by {ctypes.c_int64(raw.address).value} "
            f"bits ({who})"
        ),
        "division": lambda: f"integer division by zero at {lines[0]} ({who})",
        "no value": lambda: (
            f"{who} reads lane {raw.address} at {lines[0]}, which does not execute that shuffle or is not in its mask"
        ),
        "left out": lambda: (
            f"thread {raw.thread[1]} does not execute the warp instruction at {lines[0]}, whose mask names it: it goes "
            f"on to {lines[1]}, which thread {raw.thread[0]} of block {raw.block[0]} reaches after the instruction"
        ),
        "assumption": lambda: f"the kernel promises the compiler at {lines[0]} what is not so: {text} ({who})",
        "past variable": lambda: (
            f"{who} {does} memory outside of a variable at {lines[0]}, as {_type(raw.text)}: an index is too large or "
            "negative"
        ),
        "operand": lambda: f"the instruction at {lines[0]} {text} ({who})",
        "mask": lambda: (
            f"the warp instruction at {lines[0]} {text} ({who})"
            if raw.text
            else f"lanes of one mask execute different warp instructions: {who} at {lines[0]}, {other} at {lines[1]}"
        ),
    }[kind]()
    unset = {"unset": f"shared memory at {lines[0]}", "no value": f"lanes that give no value at {lines[0]}"}
    return Found(_NAMES.get(kind, kind), words, tuple(dict.fromkeys(lines)), unset.get(kind, ""))


def _type(name: bytes) -> str:
    text = name.decode(errors="replace").strip("'")
    return text or "a value"


def finding(found: Sequence[Found]) -> KernelFinding:
    """Return the error for a launch's findings: the first in full, and the number of others.

    Findings of one pair of lines count as one.
    """
    distinct = list({(f.kind, f.lines): f for f in reversed(found)}.values())[::-1]
    words = distinct[0].words
    if more := len(distinct) - 1:
        places = "; ".join(" and ".join(f.lines) for f in distinct[1 : 1 + _MOST])
        words += f" (and {more} more: {places}{' …' if more > _MOST else ''})"
    return KernelFinding(distinct[0].kind, words, tuple(line for f in distinct for line in f.lines))
