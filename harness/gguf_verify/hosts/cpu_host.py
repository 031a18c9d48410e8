"""The CPU as a host: the C++ compiler compiles CUDA C++ against `kernels/emulator/cuda_on_cpu.hpp`."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..support.errors import EnvironmentFault, KernelFault, KernelFinding, NotRun, NotTried
from ..support.text import printable
from . import findings
from .base import MOST_ALONE, Artefact, Blocks, Grid, Host, Placed, Sparse, Written, poisoned
from .compilation import ARCH_ON_CPU, Compilation, ForeignUnit, architectures, split_flags
from .compiler import (
    APART,
    CHECKS,
    FOREIGN,
    ONLY_CALLED,
    TRACES,
    Built,
    as_without_flags,
    build_checked,
    build_foreign,
    build_traced,
    checked_library,
    checks_fault,
    compiler,
    compiler_version,
    counted,
    cpu_name,
    library_of_thread,
    shared_library,
    waits,
)  # fmt: skip
from .launch_limits import LaunchLimits, as_json, files_below, from_json, limits_of, most_shared
from .memory import GUARD_BYTES, POISON, POISON_16, addresses, between_walls
from .schedule import Schedule

if TYPE_CHECKING:
    from ..results.environment import HostInfo

#: The end of a launch, `cuda_on_cpu::Outcome`.
_STUCK, _OUTSIDE_SHARED, _CRASHED, _FOUND, _TOO_MUCH, _TRAPPED, _WAITING, _UNLIKE_A_GPU = 1, 2, 3, 4, 5, 6, 7, 8
_ORDERS = {"ascending": 0, "descending": 1, "seeded": 2}
_WRITES, _OF_STACK = 1, 2
#: Without it, shared memory of a function template would be that of the first library with such a function.
_OWN = "-fvisibility=hidden"
#: Why a launch says nothing about a GPU.
_CONVERTED = (
    "the kernel converts a float to an integer type that cannot hold it, at {}: a GPU gives the nearest integer, this "
    "CPU another one. Clamp the float first, convert it by __float2int_rz, __float2uint_rz or the like, or verify with "
    "--host gpu"
)
#: Largest distance from a buffer, in bytes, at which an address is described relative to it.
_NEAR = 1 << 30
#: Bytes of unmapped addresses around sparse buffers: an index of 4-byte values that wrapped around ends up there.
_APART = 1 << 34


class Range(ctypes.Structure):
    """`cuda_on_cpu::Range`: memory passed to a launch."""

    _fields_ = [
        ("begin", ctypes.c_uint64), ("size", ctypes.c_uint64), ("content", ctypes.c_uint64),
        ("period", ctypes.c_uint64), ("zeros", ctypes.c_uint64), ("output", ctypes.c_uint32), ("lead", ctypes.c_uint32),
    ]  # fmt: skip


class Request(ctypes.Structure):
    """`cuda_on_cpu::Request`."""

    _fields_ = [
        ("order", ctypes.c_uint32), ("fill", ctypes.c_uint32), ("seed", ctypes.c_uint64),
        ("ranges", ctypes.POINTER(Range)), ("n_ranges", ctypes.c_uint32), ("page", ctypes.c_uint32),
        ("alone", ctypes.c_uint64), ("made", ctypes.POINTER(ctypes.c_uint64)), ("most_made", ctypes.c_uint64),
        ("in_turn", ctypes.c_uint32), ("converts", ctypes.c_uint32), ("some", ctypes.c_uint64),
        ("watched", ctypes.POINTER(ctypes.c_uint64)), ("writers", ctypes.POINTER(ctypes.c_uint64)),
        ("n_watched", ctypes.c_uint64), ("n_writers", ctypes.c_uint64),
    ]  # fmt: skip


class FoundHere(ctypes.Structure):
    """`cuda_on_cpu::Finding`."""

    _fields_ = [
        ("kind", ctypes.c_uint32), ("writes", ctypes.c_uint32 * 2), ("thread", ctypes.c_uint32 * 2),
        ("block", ctypes.c_uint32 * 2), ("size", ctypes.c_uint32), ("address", ctypes.c_uint64),
        ("at", ctypes.c_uint64 * 2), ("text", ctypes.c_char * 96),
    ]  # fmt: skip


class LaunchReport(ctypes.Structure):
    """`cuda_on_cpu::Report`."""

    _fields_ = [
        ("signal", ctypes.c_int32), ("access", ctypes.c_uint32), ("n_findings", ctypes.c_uint32),
        ("n_made", ctypes.c_uint32), ("address", ctypes.c_uint64), ("findings", FoundHere * 16),
        ("adds_floats", ctypes.c_uint32), ("_", ctypes.c_uint32), ("why", ctypes.c_char * 200),
    ]  # fmt: skip


class Buffer:
    """Bytes at an address; an output has a guard of `guard` bytes before and behind it."""

    def __init__(self, array: npt.NDArray[np.uint8], what: str, guard: int = 0, output: bool = False) -> None:
        self.array, self.what, self.offset, self.is_output = array, what, guard, output

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data) + self.offset

    @property
    def size(self) -> int:
        return self.array.size - 2 * self.offset

    def range(self) -> Range:
        """Return it in the runner's form."""
        return Range(self.address, self.size, output=int(self.is_output))


class SparseBuffer:
    """An argument of a block run alone, in pages from an address on."""

    def __init__(self, argument: Sparse, address: int) -> None:
        self.pages, self.address = range(address, address + argument.lead + argument.nbytes), address + argument.lead
        self.size, self.what, self.role = argument.nbytes, argument.what, argument.role
        self.poison = _POISONS[argument.unit]
        self._content: Buffer | None = argument.content
        self._zeros = argument.zeros

    def range(self) -> Range:
        """Return it in the runner's form."""
        written = int(self.role != "input")
        content, period = self.poison.ctypes.data, self.poison.nbytes
        if self._content is not None:
            content, period = self._content.address, self._content.size
        lead = self.address - self.pages.start
        return Range(self.pages.start, len(self.pages), content, period, self._zeros, written, lead)

    def page(self, at: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return the numbers of the page at an address, before any write."""
        if self._content is None:
            return self.poison
        content = self._content.array
        return content[(at - self.address + np.arange(mmap.PAGESIZE)) % len(content)].view(self.poison.dtype)


#: Pages of poison, by the bytes of a number.
_POISONS = {poison.nbytes: np.full(mmap.PAGESIZE // poison.nbytes, poison) for poison in (POISON, POISON_16)}


def place(address: int, buffers: Sequence[Buffer | SparseBuffer]) -> str:
    """Describe the place of an address relative to buffers."""
    if address < 1 << 16:
        return "at a null pointer"
    found = []
    for b in buffers:
        if b.address <= address < b.address + b.size:
            return f"at byte {address - b.address:,} of its {b.what}"
        before, past = b.address - address, address - b.address - b.size
        found.append((before, "before", b) if before > 0 else (past, "past the end of", b))
    if found:
        distance, where, b = min(found, key=lambda f: f[0])
        if distance < (_APART if isinstance(b, SparseBuffer) else _NEAR):
            return f"{distance:,} bytes {where} its {b.what} ({b.size:,} bytes)"
    return "far from all of its buffers"


def _text(path: Path) -> str:
    """Return a source; "" if there is none, which the compiler reports."""
    return path.read_text(errors="replace") if path.is_file() else ""


def _aligned(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Copy to an address aligned to 16. A part of a mapped file may begin anywhere."""
    room = np.empty(array.size + 15, np.uint8)
    at = -room.ctypes.data % 16
    room[at : at + array.size] = array
    return room[at : at + array.size]


def _unit(file: str, entry: str) -> str:
    """Return the translation unit of a kernel."""
    return f'#include "{file}"\nCPU_KERNEL({entry})\n'


def _foreign_text(unit: ForeignUnit, macros: Sequence[str]) -> str:
    """Return the translation unit of a foreign source.

    The author's macros follow all headers, and `macros` precede them.
    """
    author = unit.author
    lines = [f"// {Path(unit.file).name}", FOREIGN.rstrip(), *macros, f"#define __CUDA_ARCH__ {ARCH_ON_CPU}"]
    for flag in split_flags(author.flags, ("-D", "-U"))[0]:
        name, _, value = flag[2:].partition("=")
        lines.append(f"#define {name} {value if '=' in flag else 1}" if flag.startswith("-D") else f"#undef {name}")
    lines += [f"#define {name} {value}" for name, value in unit.defines.items()]
    lines.append(f'#include "{unit.file}"')
    for i, entry in enumerate(unit.entries):
        if entry in author.sizes:
            sizes = ", ".join(map(str, author.sizes[entry]))
            said = f"the parameters of {entry} are not those that are declared"
            lines.append(f'static_assert(gguf_verify_fits<{sizes}>({entry}), "{said}");')
        lines.append(f"GGUF_VERIFY_ENTRY({_ENTRY}{i}_launch, {entry})")
    return "\n".join([*lines, ""])


#: Beginning of the names of a foreign source's kernels in a library.
_ENTRY = "gguf_verify_entry_"
#: Errors of C++ that nvcc only warns about.
_LENIENT = ("-Wno-narrowing",)


def _entry(library: ctypes.CDLL, entry: str, name: str | Path = "") -> Any:
    """Return the function that launches a kernel of a library; `name` is the library's name for `source_lines`."""
    function = getattr(library, f"{entry}_launch")
    function.restype = ctypes.c_int
    function.library, function.limits, function.counters = name, LaunchLimits(), library.cuda_on_cpu_counters
    function.counters.restype = ctypes.c_uint64
    if (compared := getattr(library, "cuda_on_cpu_comparisons", None)) is not None:
        compared.restype = ctypes.c_uint64
    function.compared = compared
    return function


ORDINARY = Schedule()
#: The number of no thread block.
_NO_BLOCK = 2**64 - 1


class CpuHost(Host):
    """Runs kernels on `threads` cores.

    Args:
        threads: operating-system threads of a launch; 0: every core available to this process.
        flags: further compiler flags, such as a sanitizer's.
        schedule: the schedule of its launches. With one, memory without access rights surrounds each buffer (otherwise
            each input), and unless the order is ascending a launch takes one operating-system thread.
    """

    name = "cpu"
    runs_on_mapped = True

    def __init__(self, threads: int = 0, flags: Sequence[str] = (), schedule: Schedule | None = None) -> None:
        self.threads: int = threads or len(os.sched_getaffinity(0))
        self.schedule = schedule
        self._flags = tuple(flags)
        self._functions: dict[tuple[Path, tuple[str, ...]], Any] = {}

    def info(self) -> HostInfo:
        from ..results.environment import HostInfo

        return HostInfo(
            name=self.name, device=cpu_name(), threads=self.threads, compiler=compiler_version(), chosen=self.chosen
        )

    def check(self) -> None:
        compiler()

    def offers(self, schedule: Schedule) -> bool:
        return not schedule.checked or not checks_fault()

    def scheduled(self, schedule: Schedule) -> Host:
        return CheckedHost(schedule) if schedule.checked else CpuHost(self.threads, self._flags, schedule)

    def check_fault(self) -> str | None:
        return checks_fault()

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        options = [f"-D{k}={v}" for k, v in defines.items()]
        key = (file, entry, *options)
        if (root, key) not in self._functions:
            self._functions[root, key] = self._compiled(root, file, entry, options)
        return self._functions[root, key]

    def _compiled(self, root: Path, file: str, entry: str, options: list[str]) -> Any:
        used = (_OWN, *self._flags, *waits([_text(root / file)], self._flags), *options)
        return _entry(shared_library(root, _unit(file, entry), used), entry)

    def build_all(self, unit: ForeignUnit, schedule: Schedule | None = None) -> tuple[dict[str, Artefact], Compilation]:
        root, author = unit.root, unit.author
        checked, traced = schedule is not None and schedule.checked, schedule is not None and schedule.traced
        used, left = split_flags(author.flags, ("-D", "-U", "-std="))
        # An overflowing index must wrap around as in a GPU's registers; a checked build reports it.
        fixed = ("-ffp-contract=off",) if checked else ("-ffp-contract=off", "-fwrapv")
        sources = root / Path(unit.file).parts[0]
        flags = () if checked else (*self._flags, *waits(map(_text, files_below(sources)), self._flags))
        options = [_OWN, *APART, *flags, *_LENIENT, *(f for f in used if f.startswith("-std=")), *fixed]
        options += [f"-I{root / folder}" for folder in author.include]
        options += ONLY_CALLED if author.not_here else ()
        more = CHECKS if checked else TRACES if traced else ()
        text = _foreign_text(unit, as_without_flags([*more, *options]))
        try:
            if checked:
                built = Built(build_checked(root, text, options), ())
            elif traced:
                built = build_traced(root, text, options)
            else:
                built = build_foreign(root, text, [*options, *counted(root)])
        except EnvironmentFault as error:
            said = "\n".join([str(error), *error.details])
            if words := [w for symbol, w in author.not_here.items() if re.search(rf"\b{symbol}\b", said)]:
                raise EnvironmentFault(words[0], details=words if len(words) > 1 else ()) from None
            raise
        named = {f"{_ENTRY}{i}": entry for i, entry in enumerate(unit.entries)}
        limits = limits_of(built.content, named, sources, most_shared(architectures(author.flags)))
        parts = {"code": built.content, "limits": as_json(limits)}
        parts |= {"notes": built.notes} if built.notes else {}
        parts |= {"unseen": built.unseen.encode()} if built.unseen else {}
        parts |= {"comparisons": built.comparisons} if built.comparisons else {}
        parts |= {} if checked else {"of_thread": library_of_thread()}
        made = {entry: Artefact(name, parts) for name, entry in named.items()}
        by = compiler_version()
        return made, Compilation(by, "the CPU", ARCH_ON_CPU, unit.entries, (*used, *fixed), tuple(left))

    def load_placed(self, placed: Placed) -> Any:
        try:
            path = Path(placed.parts["code"])
            if (needed := placed.parts.get("of_thread")) is not None:
                ctypes.CDLL(needed)
            function = _entry(ctypes.CDLL(str(path)), placed.entry, path)
            if (said := placed.parts.get("limits")) is not None:
                function.limits = from_json(Path(said).read_bytes())[placed.entry]
            return function
        except (OSError, AttributeError) as error:
            raise EnvironmentFault(f"a compiled kernel cannot be loaded: {error}") from None

    def upload(self, array: npt.NDArray[Any], what: str = "input") -> Buffer:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if self.schedule is not None or not self._flags:  # a sanitizer detects bad accesses itself
            walled = between_walls(raw.size, self.schedule is not None and self.schedule.wall_before)
            walled[:] = raw
            return Buffer(walled, what)
        return Buffer(raw if raw.ctypes.data % 16 == 0 else _aligned(raw), what)

    def over(self, memory: npt.NDArray[np.uint8], what: str, output: bool = False) -> Buffer:
        return Buffer(memory, what, output=output)

    def contents(self, buffer: Buffer) -> npt.NDArray[np.uint8]:
        return buffer.array

    def output(self, nbytes: int, what: str = "output") -> Buffer:
        whole = poisoned(nbytes, self.fill)
        if self.schedule is not None:
            walled = between_walls(whole.size, True)
            walled[:] = whole
            whole = walled
        return Buffer(whole, what, GUARD_BYTES, output=True)

    def begin(self, output: Buffer, content: npt.NDArray[np.uint8]) -> None:
        output.array[output.offset : output.offset + output.size] = content

    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        buffers = [a for a in args if isinstance(a, Buffer)]
        self._launch(kernel, grid, block, args, shared, buffers, self._request(buffers))

    def _launch(
        self,
        kernel: Any,
        grid: Grid,
        block: Grid,
        args: Sequence[Any],
        shared: int,
        buffers: Sequence[Buffer | SparseBuffer],
        request: Request,
    ) -> LaunchReport:
        if (refused := kernel.limits.refused(grid, block, shared)) is not None:
            raise KernelFinding("limit", f"no GPU runs the launch: {refused}")
        cells = [np.array(np.uint64(a.address) if isinstance(a, Buffer | SparseBuffer) else a) for a in args]
        pointers = (ctypes.c_void_p * len(cells))(*(c.ctypes.data for c in cells))
        three, report = ctypes.c_uint * 3, LaunchReport()
        outcome = kernel(
            three(*grid), three(*block), pointers, shared, self.threads, ctypes.byref(request), ctypes.byref(report)
        )
        self.adds_floats = self.adds_floats or bool(report.adds_floats)
        if self.watches:
            found = {request.writers[i] for i in range(request.n_writers)}
            self.writers = sorted(found - {_NO_BLOCK})
        self._raise(outcome, report, buffers, shared)
        return report

    def counters(self, kernel: Any, to: npt.NDArray[np.uint8]) -> int:
        return int(kernel.counters(ctypes.c_void_p(to.ctypes.data), ctypes.c_uint64(to.size)))

    def compared(self, kernel: Any, to: npt.NDArray[np.void]) -> int:
        if kernel.compared is None:
            return 0
        return int(kernel.compared(ctypes.c_void_p(to.ctypes.data), ctypes.c_uint64(to.size)))

    @property
    def runs_alone(self) -> bool:  # type: ignore[override]
        return not self._flags and self.schedule is None  # a sanitizer has its own handlers of faults

    def launch_alone(self, launches: Sequence[Blocks]) -> Written:
        sparse = {a.what: a for launch in launches for a in launch.args if isinstance(a, Sparse)}
        room = [-(-(a.lead + a.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE + _APART for a in sparse.values()]
        made: set[int] = set()
        with addresses(_APART + sum(room)) as start:
            at = [start + _APART + sum(room[:i]) for i in range(len(room))]
            placed = {what: SparseBuffer(a, at[i]) for i, (what, a) in enumerate(sparse.items())}
            for launch in launches:
                for one in launch.numbers:
                    made.update(self._one_alone(launch, one, placed))
            return self._written(next(b for b in placed.values() if b.role == "output"), made)

    def _one_alone(self, launch: Blocks, number: int, placed: Mapping[str, SparseBuffer]) -> list[int]:
        """Run one thread block; return the pages of sparse memory that it was the first to access."""
        made = (ctypes.c_uint64 * (MOST_ALONE // mmap.PAGESIZE))()
        buffers, args = list(placed.values()), [placed[a.what] if isinstance(a, Sparse) else a for a in launch.args]
        request = self._request(buffers)
        request.page, request.alone, request.made, request.most_made = mmap.PAGESIZE, 1 + number, made, len(made)
        report = self._launch(launch.kernel, launch.grid, launch.block, args, launch.shared, buffers, request)
        return made[: report.n_made]

    @staticmethod
    def _written(output: SparseBuffer, made: Collection[int]) -> Written:
        """Return the changes of the output. Raises KernelFault for a write outside it."""
        number = output.poison.dtype
        at, words = [np.zeros(0, np.int64)], [np.zeros(0, number)]
        for page in sorted(p for p in made if p in output.pages):
            held = np.ctypeslib.as_array((ctypes.c_uint8 * mmap.PAGESIZE).from_address(page)).view(number)
            found = np.flatnonzero(held != output.page(page))
            at.append((page - output.address) // number.itemsize + found)
            words.append(held[found])
        written = Written(np.concatenate(at), np.concatenate(words))
        past, before = written.at[-1:] >= output.size // number.itemsize, written.at[:1] < 0
        if past.any() or before.any():
            where = "past the end" if past.any() else "before the start"
            raise KernelFault(f"the kernel writes {where} of its {output.what} ({output.size:,} bytes)")
        return written

    def _raise(self, outcome: int, report: LaunchReport, buffers: Sequence[Buffer | SparseBuffer], shared: int) -> None:
        """Raise KernelFault if a launch failed."""
        if outcome == _TOO_MUCH:
            raise EnvironmentFault(f"a thread block accesses more than {MOST_ALONE >> 20} MiB")
        if outcome == _WAITING:
            raise NotTried("thread blocks of the kernel wait for others, and none of those that have begun ends")
        if outcome == _STUCK:
            raise KernelFinding("divergent", "threads of a block wait at a barrier that the others never reach")
        if outcome == _OUTSIDE_SHARED:
            self._outside_shared(f"the kernel wrote outside its {shared} bytes of dynamic shared memory")
        if outcome == _TRAPPED:
            raise KernelFault(printable(report.why.decode("utf-8", "replace"), 200))
        if outcome == _UNLIKE_A_GPU:
            raise NotRun(_CONVERTED.format(Path(printable(report.why.decode("utf-8", "replace"), 200)).name))
        if outcome == _CRASHED:
            words = crash_in_words(report, buffers)
            if report.signal == signal.SIGFPE:
                raise KernelFinding("division", words)
            raise KernelFinding("outside", words) if "outside its buffers" in words else KernelFault(words)

    def _request(self, buffers: Sequence[Buffer | SparseBuffer]) -> Request:
        schedule = self.schedule or ORDINARY
        ranges = (Range * len(buffers))(*(b.range() for b in buffers))
        fill = schedule.fill if self.shared_fill is None else self.shared_fill
        some, seed = self.some or (0, schedule.seed % 2**64)
        order, request = _ORDERS[schedule.order], ctypes.c_uint64 * len(self.watches)
        writers = self.writers if some else [_NO_BLOCK] * (len(self.watches) * self.threads)
        return Request(
            order, fill, seed, ranges, len(buffers), converts=schedule.converts, some=some,
            watched=request(*self.watches), writers=(ctypes.c_uint64 * len(writers))(*writers),
            n_watched=len(self.watches), n_writers=len(writers),
        )  # fmt: skip

    def _outside_shared(self, said: str) -> None:
        raise KernelFinding("outside", said)

    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        return 3  # few, so that blocks loop over further work, as on a GPU

    def _read(self, output: Buffer) -> npt.NDArray[np.uint8]:
        return output.array


def crash_in_words(report: LaunchReport, buffers: Sequence[Buffer | SparseBuffer]) -> str:
    """Describe the signal that ended a launch."""
    if report.signal == signal.SIGFPE:
        return "the kernel divides an integer by zero"
    if report.access == _OF_STACK:
        return "a thread of the kernel overflows its stack (recursion, or large arrays)"
    if report.signal == signal.SIGSEGV and not report.address:
        return "the kernel accesses a null pointer, an address that cannot exist, or a misaligned one"
    does = "writes" if report.access == _WRITES else "reads"
    where = place(report.address, buffers)
    return f"the kernel {does} {'' if where.startswith('at byte') else 'outside its buffers: '}{where}"


class CheckedHost(CpuHost):
    """Runs kernels that are compiled with instrumentation, on one core. Raises KernelFinding at a launch's end.

    Shared memory that is read before it is written is only a finding if an output depends on it: such a launch is
    repeated with other bytes there.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(1, schedule=schedule)
        self._fill: int | None = None
        self._now: Any = None
        self._unset: list[findings.Found] = []

    def _compiled(self, root: Path, file: str, entry: str, options: list[str]) -> Any:
        library, name = checked_library(root, _unit(file, entry), (_OWN, *options))
        return _entry(library, entry, name)

    def _request(self, buffers: Sequence[Buffer | SparseBuffer]) -> Request:
        request = super()._request(buffers)
        request.fill = request.fill if self._fill is None else self._fill
        return request

    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        outputs = [a for a in args if isinstance(a, Buffer) and a.is_output]
        before = [b.array.copy() for b in outputs]
        self._now, self._unset = kernel, []
        super().launch(kernel, grid, block, args, shared, overlaps)
        if not self._unset:
            return
        suspects, first = self._unset, [b.array.copy() for b in outputs]
        for buffer, was in zip(outputs, before, strict=True):
            buffer.array[:] = was
        assert self.schedule is not None
        self._fill = self.schedule.fill ^ 0x5A
        try:
            super().launch(kernel, grid, block, args, shared, overlaps)
        finally:
            self._fill = None
        if any(not np.array_equal(b.array, was) for b, was in zip(outputs, first, strict=True)):
            raise findings.finding(suspects)
        self.unset = tuple(dict.fromkeys((*self.unset, *(f.unset for f in suspects))))

    def _raise(self, outcome: int, report: LaunchReport, buffers: Sequence[Buffer | SparseBuffer], shared: int) -> None:
        if outcome != _FOUND:
            return super()._raise(outcome, report, buffers, shared)
        library: str = self._now.library
        found = [
            findings.found(f, library, lambda at: place(at, buffers)) for f in report.findings[: report.n_findings]
        ]
        known = [f for f in found if f is not None]
        self._unset += [f for f in known if f.unset]
        if real := [f for f in known if not f.unset]:
            raise findings.finding(real)
