"""What the rungs ask of a kernel, recorded once from a real verification and asked again of every mutant.

A subject is a kernel and a type of weights. `verify_model.py` is run on a real model of that type with the shipped
kernel, and every call that the blocks and layers rungs make of it is written down: weights, activations, output. A
mutant gets the same calls. Its outputs are judged by `gguf_verify.semantics.judge` against the exact product of the
declared semantics, its quantizer's bytes and packed weights are compared as the rungs do, its writes outside and what
it left unwritten are seen by the host's guards.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
import numpy.typing as npt

from ...formats import ELEMENTS, FILE_TYPES, FORMATS, BlockFormat, ElementFormat, WeightFormat
from ...formats.q8_1 import Q8_1
from ...hosts import CpuHost
from ...hosts.base import GUARD_BYTES, POISON, outside
from ...kernels import packed as packing
from ...kernels.interface import Weights
from ...kernels.ladder import KERNELS
from ...kernels.shipped import ELEMENT_KERNELS, ShippedKernel
from ...llama import Llama
from ...results import Options
from ...rungs.generated_inputs import any_blocks
from ...semantics import SEMANTICS, Product, judge, product
from ...support.errors import KernelFault
from ...support.paths import CHECKOUT, kernel_root
from ...verification import verify
from .units import Unit, lines_alive

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
_T = TypeVar("_T")
_A = TypeVar("_A", bound=npt.NDArray[Any])

ROOT = CHECKOUT
FIXTURES = ROOT / "fixtures"
#: Two matrices of the model: 128 rows of 256 values, 256 rows of 768.
TENSORS = r"^blk\.0\.(attn_k|ffn_down)\.weight$"
ELEMENTS_KERNEL = "elements"
#: Types that gguf-py has no name of: `enum llama_ftype` of llama.h, by which llama.cpp quantizes the whole file.


@dataclass(frozen=True)
class Subject:
    """A kernel, by the name that --kernel takes (or `elements`, of weights that are not quantized), and a type."""

    kernel: str
    fmt: str

    @property
    def weights(self) -> WeightFormat:
        return FORMATS.get(self.fmt) or ELEMENTS[self.fmt]

    @property
    def on_semantics(self) -> str:
        """The definition that the kernel declares."""
        return self.fmt.lower() if self.kernel == ELEMENTS_KERNEL else KERNELS[self.kernel].semantics

    def on(self, host: CpuHost) -> ShippedKernel:
        spec = ELEMENT_KERNELS[self.fmt] if self.kernel == ELEMENTS_KERNEL else KERNELS[self.kernel]
        return ShippedKernel(spec, host)

    def __str__(self) -> str:
        return f"{self.kernel} {self.fmt}"


# -- models -----------------------------------------------------------------------------------------------------------


def model_of(fmt: str, folder: Path) -> Path:
    """The project's own trained model with its matrices in this type: a fixture, or made of the F16 one in `folder`,
    quantized by llama.cpp (with an importance of one for each value, which some types need)."""
    fixture = FIXTURES / f"tiny-{fmt}.gguf"
    if fixture.is_file():
        return fixture
    path = folder / f"tiny-{fmt}.gguf"
    if not path.exists():
        made = path.with_suffix(f".{os.getpid()}")  # others may make it too
        if fmt not in gguf.GGMLQuantizationType.__members__:  # its writer does not know the type
            with Llama() as llama:
                llama.quantize_file(FIXTURES / "tiny-F16.gguf", made, FILE_TYPES[fmt], pure=True)
        else:
            _write_model(fmt, made)
        made.replace(path)
    return path


def _write_model(fmt: str, path: Path) -> None:
    reader = gguf.GGUFReader(FIXTURES / "tiny-F16.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for entry in reader.fields.values():
        if not entry.name.startswith("GGUF.") and entry.name != "general.architecture":
            element = entry.types[1] if len(entry.types) > 1 else None
            writer.add_key_value(entry.name, entry.contents(), entry.types[0], element)
    kind = FORMATS.get(fmt) or ELEMENTS[fmt]
    with Llama() as llama:
        for tensor in reader.tensors:
            if tensor.tensor_type != gguf.GGMLQuantizationType.F16 or len(tensor.shape) < 2:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
                continue
            values = np.ascontiguousarray(tensor.data.astype(np.float32))
            if fmt == "F32":
                writer.add_tensor(tensor.name, values)
            elif fmt == "BF16":
                high = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
                writer.add_tensor(tensor.name, high, raw_dtype=gguf.GGMLQuantizationType.BF16)
            else:
                raw = llama.quantize(kind.type_id, values, np.ones(values.shape[1], np.float32))
                rows = raw.reshape(len(values), -1)
                writer.add_tensor(tensor.name, rows, raw_dtype=gguf.GGMLQuantizationType(kind.type_id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# -- calls ------------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One call of a kernel.

    Args:
        kind: product, gemm or quantize.
        weights: number of the matrix, of `Calls.matrices`; -1 for quantize.
        x: float32[M, K], or uint8[M, row bytes] for gemm.
        y: what the shipped kernel gave.
        expected: the exact product; None where the call is no part of the gate, or of no product.
        values: the float32 product of the dequantized weights and the values before they were quantized.
        fair: which of the other gates the shipped kernel's own output passes.
        units: what runs for it, of its weights' packing too: a mutant of another unit changes nothing of it.
    """

    kind: str
    weights: int
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    expected: Product | None = None
    values: npt.NDArray[np.float64] | None = None
    fair: dict[str, bool] = field(default_factory=dict)
    what: str = ""
    units: frozenset[Unit] = frozenset()

    @property
    def work(self) -> int:
        return int(self.y.size * self.x.shape[1])


@dataclass
class Calls:
    """Matrices uint8[N, row bytes] and the calls that use them."""

    fmt: WeightFormat
    matrices: list[Bytes] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class _LoadingHost(CpuHost):
    """Writes down which units and entries are asked for."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.units: dict[Unit, set[str]] = {}
        self._asked: set[Unit] = set()

    def watched(self, f: Callable[..., _T], *args: Any) -> tuple[_T, frozenset[Unit]]:
        """What f returns, and the units that it asks for."""
        self._asked = set()
        found = f(*args)
        return found, frozenset(self._asked)

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        unit = Unit(file, tuple(defines.items()))
        self.units.setdefault(unit, set()).add(entry)
        self._asked.add(unit)
        return super().load(root, file, entry, defines, target)


class _Recorder(ShippedKernel):
    """A shipped kernel that writes down what it is asked and what it gave."""

    def __init__(self, subject: Subject, host: _LoadingHost, calls: Calls) -> None:
        super().__init__(subject.on(host).spec, host)
        self._calls, self._subject, self._loads = calls, subject, host
        #: Weights by their identity: their number, and the units that made them.
        self._known: dict[int, tuple[int, frozenset[Unit]]] = {}
        self._kept: list[Weights] = []

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> ShippedKernel:
        assert fmt.name == self._subject.fmt
        return self

    def covers(self, fmt: WeightFormat) -> bool:
        return fmt.name == self._subject.fmt

    def upload(self, fmt: WeightFormat, rows: Bytes) -> Weights:
        weights, units = self._loads.watched(super().upload, fmt, rows)
        self._known[id(weights)] = len(self._calls.matrices), units
        self._kept.append(weights)
        self._calls.matrices.append(rows.copy())
        return weights

    def note(self, kind: str, f: Callable[..., _A], weights: Weights | None, x: npt.NDArray[Any], what: str = "") -> _A:
        """What the shipped f gives of x, written down."""
        number, made_by = (-1, frozenset[Unit]()) if weights is None else self._known[id(weights)]
        y, units = self._loads.watched(f, *([] if weights is None else [weights]), x)
        self._calls.calls.append(Call(kind, number, x.copy(), y.copy(), what=what, units=units | made_by))
        return y

    def quantize(self, x: Floats, what: str = "") -> Bytes:
        if self.semantics != "q8_1":
            return super().quantize(x)
        return self.note("quantize", super().quantize, None, x, what)

    def gemm(self, weights: Weights, x: Bytes, what: str = "") -> Floats:
        return self.note("gemm", super().gemm, weights, x, what)

    def product(self, weights: Weights, x: Floats, what: str = "") -> Floats:
        return self.note("product", super().product, weights, x, what)


@dataclass
class Gate:
    """All that a mutant of a subject is asked.

    Args:
        rungs: the calls of the blocks and layers rungs, the cheap ones first.
        probes: further valid inputs, at which no rung looks.
        units: what the host compiled for them, and entries.
        alive: of each unit, the lines of each file that the preprocessor leaves.
    """

    subject: Subject
    rungs: Calls
    probes: Calls
    units: dict[Unit, tuple[str, ...]]
    alive: dict[Unit, dict[str, frozenset[int]]]


def record(subject: Subject, folder: Path, threads: int = 1, probes: bool = True) -> Gate:
    """Verify the real model with the shipped kernel and keep what was asked. Raises KernelFault where it fails."""
    host = _LoadingHost(threads)
    calls = Calls(subject.weights)
    recorder = _Recorder(subject, host, calls)
    options = Options(tensor=TENSORS, threads=threads, progress=False)
    report = verify(model_of(subject.fmt, folder), recorder, rungs=["blocks", "layers"], options=options)
    if report.exit_code:
        said = [f.what for r in report.rungs for f in r.failures] + [str(r.fault) for r in report.rungs if r.fault]
        raise KernelFault(f"{subject}: the shipped kernel is not verified: {report.verdict}; {said[:2]}")
    _exact(recorder, calls)
    calls.calls.sort(key=lambda c: c.work)
    beyond = _probes(subject, host) if probes else Calls(subject.weights)
    units = {unit: tuple(sorted(found)) for unit, found in host.units.items()}
    alive = {unit: lines_alive(kernel_root(), unit, entries) for unit, entries in units.items()}
    return Gate(subject, calls, beyond, units, alive)


def _exact(kernel: ShippedKernel, calls: Calls) -> None:
    """Fill in what each output should be, and which other gates are fair to it."""
    fmt = calls.fmt
    semantics = SEMANTICS[kernel.semantics]
    dense = [fmt.decode(r.reshape(len(r), -1, fmt.block_bytes)).reshape(len(r), -1).astype(np.float64)
             if isinstance(fmt, BlockFormat) else fmt.decode(r).astype(np.float64) for r in calls.matrices]  # fmt: skip
    for call in calls.calls:
        if call.kind == "quantize":
            continue
        w = calls.matrices[call.weights]
        own = call.kind == "product"
        x = semantics.bytes_of(call.x) if own else call.x
        call.expected = product(semantics, fmt, w, x, kernel.order if own else None)
        if own or semantics.activations is None:
            values = call.x if own else np.ascontiguousarray(call.x).view(np.float32)
        else:
            assert semantics.activations is not None
            blocks = call.x.reshape(len(call.x), -1, semantics.activations.block_bytes)
            values = semantics.activations.decode(blocks).reshape(len(call.x), -1)
        call.values = values.astype(np.float64) @ dense[call.weights].T
        assert judge(call.y, call.expected).passed
        call.fair = other_gates(call.y, call)


# -- other gates ------------------------------------------------------------------------------------------------------

NMSE_LIMIT, CLOSE_RTOL, CLOSE_ATOL, COSINE_LIMIT = 5e-4, 1e-2, 1e-2, 0.98


def nmse(y: npt.NDArray[Any], o: npt.NDArray[Any]) -> float:
    """Σ(y - o)² / Σ o²: what llama.cpp's test-backend-ops measures."""
    energy = float((o**2).sum())
    return float(((y - o) ** 2).sum()) / energy if energy else float("inf") if (y != o).any() else 0.0


def cosine(y: npt.NDArray[Any], o: npt.NDArray[Any]) -> float:
    """Of the whole outputs as vectors."""
    norm = float(np.linalg.norm(y)) * float(np.linalg.norm(o))
    return float((y * o).sum()) / norm if norm else float(not y.any() and not o.any())


def other_gates(y: Floats, call: Call) -> dict[str, bool]:
    """Whether each of the other gates lets y pass, against the float32 values and against the kernel's definition."""
    assert call.expected is not None
    assert call.values is not None
    wide = y.astype(np.float64)
    passed = {}
    with np.errstate(all="ignore"):
        for against, o in (("values", call.values), ("definition", call.expected.exact)):
            passed[f"nmse {against}"] = nmse(wide, o) <= NMSE_LIMIT
            passed[f"allclose {against}"] = bool(np.allclose(wide, o, rtol=CLOSE_RTOL, atol=CLOSE_ATOL))
            passed[f"cosine {against}"] = cosine(wide, o) >= COSINE_LIMIT
    return passed


GATES = tuple(f"{gate} {against}" for gate in ("nmse", "allclose", "cosine") for against in ("values", "definition"))


# -- probes -----------------------------------------------------------------------------------------------------------

#: Tokens, rows and slices of 32: a little more and less than tiles have, long and short, in other triples than the
#: layers rung's.
_SHAPES = (
    (3, 31, 3), (17, 300, 5), (8, 40, 4), (4, 65, 7), (9, 63, 11), (1, 130, 17), (65, 17, 3), (16, 1, 6), (7, 513, 1),
    (129, 64, 1), (1, 2, 33), (64, 96, 2), (34, 258, 1), (6, 127, 2), (130, 5, 9), (4, 36, 280), (2, 130, 140),
    (1, 34, 150), (6, 35, 90), (14, 70, 35), (20, 34, 130), (18, 129, 66), (70, 2050, 1), (3, 4200, 2), (2, 36, 170),
    (2, 128, 64), (64, 1100, 2),
)  # fmt: skip


def _halves(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float16]:
    """Finite halves of every kind: usual, any, subnormal, large."""
    low, high = np.array([(0x1000, 0x2C00), (0, 0x7C00), (0, 0x0400), (0x7000, 0x7C00)])[rng.integers(0, 4, shape)].T
    bits = rng.integers(low.T, high.T) | rng.integers(0, 2, shape) << 15
    return np.asarray(bits.astype("<u2").view("<f2"))


def probe_weights(rng: np.random.Generator, fmt: WeightFormat, n: int, k: int) -> Bytes:
    """Random bytes under finite scales, uint8[n, row bytes]."""
    if isinstance(fmt, ElementFormat):
        values = rng.standard_normal((n, k)).astype(np.float32)
        if fmt.name == "BF16":
            return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
        return values.astype({"F32": np.float32, "F16": np.float16}[fmt.name]).view(np.uint8)
    return any_blocks(fmt, n * k // fmt.block_size, int(rng.integers(1 << 32))).reshape(n, -1)


def probe_values(rng: np.random.Generator, m: int, k: int) -> Floats:
    """Activations of many sizes, with outliers, zeros and codes at a tie."""
    x = rng.standard_normal((m, k)) * np.array([1, 1e-3, 30, 1e-7, 1e-41, 1e4])[np.arange(m) % 6][:, None]
    x[:, rng.random(k) < 0.01] *= 300
    x[rng.random((m, k)) < 0.02] = 0
    x[rng.random((m, k)) < 0.02] *= -0.0
    ties = rng.random(m) < 0.2
    x[ties] = np.round(x[ties] * 2) / 2
    x[ties, ::32] = 127 * rng.choice([-1, 1], (int(ties.sum()), len(range(0, k, 32))))
    return np.ascontiguousarray(x, np.float32)


def probe_bytes(rng: np.random.Generator, m: int, k: int) -> Bytes:
    """Q8_1 of random bytes under any finite d and s."""
    structs = np.zeros((m, k // 32), Q8_1.dtype)
    structs["qs"] = rng.integers(-128, 128, structs["qs"].shape)
    structs["d"], structs["s"] = _halves(rng, structs.shape), _halves(rng, structs.shape)
    return structs.view(np.uint8).reshape(m, -1)


def _probes(subject: Subject, host: _LoadingHost) -> Calls:
    rng = np.random.default_rng(11)
    fmt = subject.weights
    calls = Calls(fmt)
    kernel = _Recorder(subject, host, calls)
    for m, n, slices in _SHAPES:
        k = -(-slices * 32 // fmt.unit) * fmt.unit if isinstance(fmt, BlockFormat) else slices * 37
        weights = kernel.upload(fmt, probe_weights(rng, fmt, n, k))
        x = probe_values(rng, m, k)
        what = f"M={m} N={n} K={k}"
        kernel.product(weights, x, what)
        if kernel.semantics == "q8_1":
            kernel.gemm(weights, probe_bytes(rng, m, k), what)
            kernel.quantize(x, f"M={m} K={k}")
    if kernel.semantics == "q8_1":  # every size, ties, blocks of few values, NaN and infinities are not valid input
        x = np.ldexp(rng.standard_normal((64, 96)), rng.integers(-140, 120, (64, 1))).astype(np.float32)
        kernel.quantize(x, "every size")
        x = (rng.integers(-254, 255, (64, 96)) / 2).astype(np.float32)
        x[:, ::32] = 127
        kernel.quantize(x, "ties")
        # where 1/d is no float, and x·(1/d) falls below the half that x/d is
        x = np.float32(rng.integers(0, 126, (64, 96)) + 0.5) * np.arange(40, 104, dtype=np.float32)[:, None]
        x[:, ::32] = 127 * np.arange(40, 104, dtype=np.float32)[:, None]
        kernel.quantize(x, "ties of d = 40 … 103")
    calls.calls.sort(key=lambda c: c.work)
    return calls


# -- mutants ----------------------------------------------------------------------------------------------------------


class MutantHost(CpuHost):
    """Takes the functions of changed units from a mutant's libraries; a guard that was overwritten is noted, and the
    run goes on, so that other gates see the output."""

    def __init__(self, changed: dict[Unit, tuple[Any, str]]) -> None:
        super().__init__(1)
        self._changed = changed
        self.changed = frozenset(changed)
        self.noted: list[str] = []
        #: Whether inputs end where memory does, so that reading on is a crash.
        self.guarded = False

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        unit = Unit(file, tuple(defines.items()))
        if unit not in self._changed:
            return super().load(root, file, entry, defines, target)
        library, name = self._changed[unit]
        function = getattr(library, f"{name}_{entry}_launch")
        function.restype = ctypes.c_int
        return function

    def upload(self, array: npt.NDArray[Any]) -> Any:
        if not self.guarded:
            return super().upload(array)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return super().upload(_before_a_wall(raw))

    def _outside_shared(self, said: str) -> None:
        self.noted.append(said)

    def download(self, output: Any) -> Bytes:
        whole = self._read(output)
        if touched := outside(whole):
            self.noted.append(touched)
        return whole[GUARD_BYTES:-GUARD_BYTES]


def _before_a_wall(raw: Bytes) -> Bytes:
    """A copy that begins at a multiple of 16 and ends less than 16 bytes before a page that nobody may read. It is not
    given back: a mutant's process is short."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    room, page = -(-raw.size // 16) * 16, mmap.PAGESIZE
    size = -(-room // page) * page
    start = libc.mmap(None, size + page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.mprotect(start + size, page, 0)
    copy = np.ctypeslib.as_array((ctypes.c_uint8 * raw.size).from_address(start + size - room))
    copy[:] = raw
    return copy


def _differs(y: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Whether any bit differs; one NaN is as good as another, since hosts differ in the NaN that they make, but for the
    poison of what was never written."""
    if y.dtype != np.float32:
        return not np.array_equal(y, expected)
    bits, wanted = y.view(np.uint32), expected.view(np.uint32)
    same = (bits == wanted) | (np.isnan(y) & np.isnan(expected) & (bits != POISON))
    return not same.all()


def _outputs(subject: Subject, host: MutantHost, calls: Calls) -> Iterator[tuple[Call, npt.NDArray[Any], str | None]]:
    """Each call that runs what is changed, with what the mutant gave, and what the host or the packing noted of it."""
    kernel = subject.on(host)
    uploaded: dict[int, Weights] = {}
    original: Callable[..., tuple[Bytes, bool]] = packing.unpacked
    rows = np.zeros((0, 0), np.uint8)  # of which the kernel's own check has not seen any yet

    def noting(fmt: BlockFormat, packed: Bytes, n: int, k: int, strips: bool = False) -> tuple[Bytes, bool]:
        nonlocal rows
        some, rows = rows[:n], rows[n:]
        again, clean = original(fmt, packed, n, k, strips)
        if not clean or not np.array_equal(again, some):
            host.noted.append("the packed weights do not hold the file's bytes")
        return some, True

    packing.unpacked = noting
    try:
        for call in calls.calls:
            if call.units.isdisjoint(host.changed):
                continue
            host.noted.clear()
            if call.kind == "quantize":
                y: npt.NDArray[Any] = kernel.quantize(call.x)
            else:
                if call.weights not in uploaded:
                    rows = calls.matrices[call.weights]
                    uploaded[call.weights] = kernel.upload(calls.fmt, rows)
                ask = kernel.gemm if call.kind == "gemm" else kernel.product
                y = ask(uploaded[call.weights], call.x)
            yield call, y, host.noted[0] if host.noted else None
    finally:
        packing.unpacked = original


def judged(
    gate: Gate, host: MutantHost, phase: Callable[[str], None] = lambda _: None,
    which: Sequence[str] = ("rungs", "walls", "probes"),
) -> dict[str, Any]:  # fmt: skip
    """What becomes of a mutant: `outcome` killed (by what: `by`), missed (a bit differs on a valid input, none where a
    rung looks), passed (a rung looked at it and let it pass) or same; `gates`, of a killed one, says which other gates
    would have caught it.

    Args:
        phase: is told what is asked next.
        which: the rungs' calls; the probes with inputs that end where memory does, so that reading on is a crash; the
            probes as they are.
    """
    for name in which:
        phase(name)
        host.guarded = name == "walls"
        try:
            found = _by_rungs(gate, host) if name == "rungs" else _by_probes(gate, host)
        except KernelFault as error:  # at a barrier: nothing comes out, which any test notices
            if name == "rungs":
                return {"outcome": "killed", "by": str(error), "gates": dict.fromkeys(GATES, True)}
            return {"outcome": "missed", "by": str(error)}
        if found is not None:
            return found
    return {"outcome": "same", "by": ""}


def _by_rungs(gate: Gate, host: MutantHost) -> dict[str, Any] | None:
    """What the rungs make of it; None where they see no change."""
    by = ""
    caught: dict[str, bool] = dict.fromkeys(GATES, False)
    changed = False  # a bit of an output, not only a byte outside
    for call, y, noted in _outputs(gate.subject, host, gate.rungs):
        differs = _differs(y, call.y)
        changed |= differs
        if not differs and not noted:
            continue
        if not by:
            by = noted or _verdict(call, y)
        if call.expected is not None and not all(caught.values()):
            passed = other_gates(y, call)
            for name in GATES:
                caught[name] |= call.fair[name] and not passed[name]
        if by and all(caught.values()):
            break
    if by:
        return {"outcome": "killed", "by": by, "gates": caught}
    return {"outcome": "passed", "by": "", "gates": caught} if changed else None


def _by_probes(gate: Gate, host: MutantHost) -> dict[str, Any] | None:
    for call, y, noted in _outputs(gate.subject, host, gate.probes):
        if noted or _differs(y, call.y):
            return {"outcome": "missed", "by": f"{call.kind} {call.what}" + (f": {noted}" if noted else "")}
    return None


def _verdict(call: Call, y: npt.NDArray[Any]) -> str:
    """By which of the rungs' checks a differing output fails; "" where it passes them."""
    if call.kind == "quantize":
        return "quantizer's bytes"
    assert call.expected is not None
    judgement = judge(y, call.expected)
    if judgement.passed:
        return ""
    bad = y[judgement.bad]
    if (bad.view(np.uint32) == POISON).any():
        return "never written"
    within = np.abs(y.astype(np.float64) - call.expected.exact)[judgement.bad] <= call.expected.bound[judgement.bad]
    return "bits of the declared order" if within.all() else "bound"


def libraries_of(changed: Sequence[tuple[Unit, Path, str]]) -> dict[Unit, tuple[Any, str]]:
    """Unit → its loaded library and the mutant's name in it."""
    return {unit: (ctypes.CDLL(str(path)), name) for unit, path, name in changed}
