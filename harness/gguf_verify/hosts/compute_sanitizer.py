"""NVIDIA's compute-sanitizer: its command line, and its messages as findings.

The texts are those of its manual (Compute Sanitizer 2026.4, "Tool Examples" and the pages of the four tools). Earlier
versions print a place as `0x160 in file.cu:6:kernel()`, which is recognized, too. No message is ignored: an unknown one
becomes a finding in the tool's words, and a log without its last line means that the tool did not do its work.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from ..support.errors import EnvironmentFault
from .findings import Found

#: In the order in which findings are reported: a thread that misses a barrier causes races.
TOOLS = ("memcheck", "synccheck", "racecheck", "initcheck")

_PREFIX = "========="
#: Folders of the CUDA toolkit and of NVIDIA's wheels that contain it.
_FOLDERS = ("bin", "compute-sanitizer")
_OPTIONS = (
    "--target-processes", "all", "--launch-timeout", "0", "--max-connections", "100", "--show-backtrace", "device",
    "--print-limit", "50", "--demangle", "simple",
)  # fmt: skip
#: Options of one tool. Adjacent allocations are separated; the harness's own copies are no accesses of the kernel.
_OF_TOOL = {
    "memcheck": ("--padding", "4096", "--report-api-errors", "no"),
    "initcheck": ("--check-api-memory-access", "no"),
}
_SHARED = ("--initcheck-address-space", "all")
#: This project's kernel that fills shared memory before a launch.
UNCHECKED = "gguf_verify_fill_shared"
_EXCLUDED = ("--kernel-name-exclude", f"kernel_name={UNCHECKED}")
#: First words of records that do not concern a kernel's behaviour.
_NO_FINDING = (
    "COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "Program hit", "Target application",
    "Error: process didn't terminate", "Error: Target application", "Error: couldn't find exit code", "Leaked",
    "Tracking kernels",
)  # fmt: skip
#: First words, or words, of records about launches that were not checked.
_NOT_CHECKED = re.compile(r"Internal Sanitizer Error|[Dd]evice not supported|Unable to|not supported|didn't track")
#: A number as the tool prints it, with a length limit: names of the author's stand between the tool's words.
_N = r"([0-9][0-9,]{0,30})"
_SUMMARY = re.compile(rf"(?:ERROR SUMMARY: {_N} error|RACECHECK SUMMARY: {_N} hazard)")
_PLACE = re.compile(r" in (\S[^:]*?|\S.*?\.\w+):(\d+)(?=:|\s|$)")
_OFFSET = re.compile(r"\bat (\S.*?\+0x[0-9a-f]+|0x[0-9a-f]+(?: in .+)?)")
_ACCESS = re.compile(r"(?:Potential i|I)nvalid __(\w+)__ (read|write|atomic)\w* of size ([\d,]+) bytes?")
_UNSET = re.compile(r"Uninitialized __(\w+)__ memory read of size ([\d,]+) bytes?")
_RACE = re.compile(r"Race reported between (Read|Write) access at (.*)")
_AND = re.compile(r"and (Read|Write) access at (.*)")
_NEAREST = re.compile(rf"and is {_N} bytes? (before|after) the nearest allocation at \S+ of size {_N} bytes?")
_THREAD = re.compile(r"by thread (\(\d+,\d+,\d+\)) in block (\(\d+,\d+,\d+\))")


@cache
def program() -> str | None:
    """Return the program, if installed: on the path, in the CUDA toolkit, or in one of NVIDIA's wheels."""
    found = shutil.which("compute-sanitizer")
    toolkits = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    wheels = [str(Path(folder, "nvidia", name)) for folder in sys.path for name in ("cu13", "cuda_sanitizer_api")]
    folders = [Path(top, below) for top in (*filter(None, toolkits), *wheels) for below in _FOLDERS]
    return found or next(filter(None, (shutil.which("compute-sanitizer", path=str(f)) for f in folders)), None)


def fault() -> str | None:
    """Return why it cannot check anything here, or None."""
    if program() is None:
        return (
            "compute-sanitizer was not found: it comes with the CUDA toolkit, or by pip install "
            "nvidia-cuda-sanitizer-api; put it on the path"
        )
    return None if _help() else "compute-sanitizer was found, but does not run"


@cache
def _help() -> str:
    return _said("--help")


def _said(*arguments: str) -> str:
    try:
        done = subprocess.run(
            [program() or "", *arguments], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


@cache
def version() -> str:
    """Return its version, such as "2026.4.0.0", or "of unknown version"."""
    found = re.search(r"Version (\S+)", _said("--version"))
    return found[1] if found else "of unknown version"


def blind_to() -> str | None:
    """Return the faults that this version does not detect, in words; None if it detects all."""
    if _SHARED[0] in _help():
        return None
    return f"compute-sanitizer {version()} does not look for shared memory that is used before it is written"


def command(tool: str, log: str) -> list[str]:
    """Return the command prefix that runs a command under a tool, which writes into the file `log`.

    Raises EnvironmentFault.
    """
    why = fault()
    if why is not None:
        raise EnvironmentFault(why)
    more = (*_OF_TOOL.get(tool, ()), *(_SHARED if tool == "initcheck" and blind_to() is None else ()))
    less = _EXCLUDED if _EXCLUDED[0] in _help() else ()
    return [str(program()), "--tool", tool, "--log-file", log, *_OPTIONS, *more, *less]


# ---- what it says ----------------------------------------------------------------------------------------------------


def found_in(text: str, tool: str, whose: Callable[[int], str | None] = lambda _: None) -> list[Found]:
    """Return the findings of a tool's log about kernels.

    Args:
        text: the whole log of a process that has ended.
        tool: the tool that wrote it.
        whose: returns the name of the buffer of this many bytes ("weights"), if only one has this size.

    Raises EnvironmentFault if the tool did not check the launches.
    """
    records = list(_records(text))
    for header, _ in records:
        if _NOT_CHECKED.search(header):
            raise EnvironmentFault(f"compute-sanitizer's {tool} could not check a launch: {header[:300]}")
    found = [_found(header, details, whose) for header, details in records if not header.startswith(_NO_FINDING)]
    told = [f for f in found if f is not None]
    summary = _SUMMARY.search(text)
    if summary is None and not told:
        last = next((header for header, _ in reversed(records) if header != "COMPUTE-SANITIZER"), "it wrote nothing")
        raise EnvironmentFault(f"compute-sanitizer's {tool} did not end as it should: {last[:300]}")
    if summary is not None and not told and int((summary[1] or summary[2]).replace(",", "")):
        raise EnvironmentFault(f"compute-sanitizer's {tool} counts errors that it does not name: {summary[0]}")
    return told


def _records(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield its records: the first line of each, and the indented lines below it."""
    header, details = "", list[str]()
    for line in text.splitlines():
        if not line.lstrip().startswith(_PREFIX):
            continue
        said = line.lstrip()[len(_PREFIX) :]
        if said.startswith("     ") and header:
            details.append(said.strip())
            continue
        if header:
            yield header, details
        header, details = said.strip(), []
    if header:
        yield header, details


def _line(places: Sequence[str]) -> str:
    """Return a place for the reader: the innermost line, and the kernel's own if that is in another file."""
    lines = [f"{Path(found[1]).name}:{found[2]}" for place in places if (found := _PLACE.search(f" {place}"))]
    if not lines:
        found = next((f for place in places if (f := _OFFSET.search(place))), None)
        return found[1] if found else "an unknown line"
    inner, outer = lines[0], lines[-1]
    return inner if inner.split(":")[0] == outer.split(":")[0] else f"{inner} (for {outer})"


def _found(header: str, details: Sequence[str], whose: Callable[[int], str | None]) -> Found | None:
    """Return a record as a finding; None for a line that has neither a known form nor a place in a kernel."""
    places = [d for d in details if d.startswith(("at ", "Device Frame:"))]
    line = _line(places)
    rest = " ".join(details)
    thread = _THREAD.search(rest)
    who = f"thread {thread[1]} of block {thread[2]}" if thread else "a thread"
    if access := _ACCESS.search(header):
        space, does, size = access.groups()
        does = {"read": "reads", "write": "writes", "atomic": "changes"}[does]
        if "is misaligned" in rest:
            return Found("misaligned", f"misaligned access at {line}: {who} {does} {size} bytes", (line,))
        where = _where(rest, space, whose)
        return Found("outside", f"{who} {does} {size} bytes outside its {where[0]} at {line}{where[1]}", (line,))
    if unset := _UNSET.search(header):
        return Found(
            "unset",
            f"{who} uses {unset[2]} bytes of {unset[1]} memory at {line} that nothing has written",
            (line,),
            f"{unset[1]} memory at {line}",
        )
    if race := _RACE.search(header):
        others = [found for d in details if (found := _AND.match(d))]
        sides = [(race[1], _line([f"at {race[2]}"])), *((o[1], _line([f"at {o[2]}"])) for o in others)]
        words = " and another ".join(f"{kind.lower()}s at {at}" for kind, at in sides)
        lines = tuple(dict.fromkeys(at for _, at in sides))
        return Found("race", f"data race: one thread {words}, with no barrier between them", lines)
    if header.startswith("Barrier error detected"):
        why = header.removeprefix("Barrier error detected").strip(" .").lower()
        return Found("divergent", f"wrong use of a barrier at {line} by {who}: {why}", (line,))
    if not places and not thread:
        return None
    return Found("other", f"{header} at {line}, by {who}", (line,))


def _where(rest: str, space: str, whose: Callable[[int], str | None]) -> tuple[str, str]:
    """Describe the memory that an access is outside of, and the distance."""
    nearest = _NEAREST.search(rest)
    if space != "global":
        return f"{space} memory", ""
    if nearest is None:
        return "buffers", ": at a null pointer" if re.search(r"Address (?:0x)?0+ is", rest) else ""
    size = int(nearest[3].replace(",", ""))
    side = "before" if nearest[2] == "before" else "past the end of"
    name = whose(size)
    # The tool counts from the last byte.
    distance = int(nearest[1].replace(",", "")) - (nearest[2] == "after")
    buffer = f"its {name} ({size:,} bytes)" if name else f"a buffer of {size:,} bytes"
    return "buffers", f": {distance:,} bytes {side} {buffer}"
