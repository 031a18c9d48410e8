"""`gguf-verify identify`: which definition the kernel and llama.cpp compute, for each type of a model's matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt

from .diagnosis.diagnose import diagnose
from .diagnosis.identify import Candidate as Tried
from .diagnosis.identify import Identification, advice, definitions, identify, identify_kernel, known_inputs
from .distributed.judges import judges
from .formats.block import BlockFormat
from .formats.element import ElementFormat
from .formats.tensor_types import WeightFormat
from .gguf.file import Tensor
from .gguf.matrices import may_be_matrix
from .hosts.base import Host
from .invocation import command_of
from .kernels.families import DEFAULT_KERNEL
from .kernels.tasks import Dequantizer, Quantizer, Task
from .processes.sandbox import sandboxed
from .results.options import Options
from .rungs.drawn import Drawn, check_reference
from .rungs.generated_inputs import any_blocks
from .rungs.opening import AnyKernel, Further, Request, open_run
from .rungs.plan import shapes_of
from .rungs.pool import Step
from .rungs.run import Run
from .semantics.cuda import NoDefinition
from .semantics.definition import Semantics
from .semantics.dequantization import ARITHMETICS, BOUNDED, applies, expected_values, rounded_float32
from .semantics.quantization import check_bytes, encoding, encodings, unit_of
from .support.errors import (
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_VERIFIED,
    EnvironmentFault,
    KernelFault,
    NothingToVerify,
    UsageError,
)
from .support.shown import Shown
from .support.version import project_version

#: Tokens: families of kernels and llama.cpp's backends choose by their number.
TOKENS = (1, 8, 9, 64)
#: The most rows of a matrix, its longest rows, and weights, that are multiplied.
MOST_ROWS, MOST_K, MOST_WEIGHTS = 256, 1 << 18, 1 << 22


@dataclass(frozen=True)
class Identified:
    """One product and the definition that was identified.

    Args:
        type, tensor: of the weights.
        m, n, k: the product's shape.
        who: the kernel's name, or "llama.cpp".
        declared: the definition that is claimed.
        found: what was identified; None where the kernel broke its contract, which `lines` explain.
        lines: explanations, where something else was identified than is declared.
        of_kernel: it is the kernel's product, not llama.cpp's.
    """

    type: str
    tensor: str
    m: int
    n: int
    k: int
    who: str
    declared: str
    found: Identification | None
    lines: tuple[str, ...] = ()
    of_kernel: bool = False

    @property
    def right(self) -> bool:
        """Whether the declared definition was identified, or gives the same outputs."""
        return self.found is not None and self.declared in self.found.names


@dataclass(frozen=True)
class IdentifyHeader:
    """The kernel with its declared definition, the host and the judge in words, and the backend of llama.cpp."""

    gguf_verify: str
    llama_cpp: str
    file: str
    kernel: str
    definition: str
    host: str
    reference: str
    judged_by: str | None


@dataclass(repr=False)
class IdentifyReport(Shown):
    """All products, and the types that were skipped: (type, why)."""

    header: IdentifyHeader
    products: list[Identified] = field(default_factory=list)
    unable: list[tuple[str, str]] = field(default_factory=list)
    command: str = ""

    @property
    def exit_code(self) -> int:
        """1 where something else than declared, or nothing, was identified; else 5 where a type was not looked at."""
        if any(not p.right for p in self.products):
            return EXIT_MISMATCH
        return EXIT_VERIFIED if self.products and not self.unable else EXIT_UNVERIFIED


def identify_model(
    path: Path | str | Drawn,
    kernel: AnyKernel = DEFAULT_KERNEL,
    host: Host | str = "auto",
    options: Options | None = None,
    **further: Unpack[Further],
) -> IdentifyReport:
    """Identify, with one matrix of each type of a GGUF model and known activations.

    Args: see `Request`.

    Raises the errors of `verification.verify`.
    """
    options = options or Options()
    request = Request(path, kernel, host, options=options, **further)
    command = request.command or command_of(request, identify=True)
    check_reference(path, options)
    with (
        sandboxed(options.sandbox, options.kernel_memory),
        open_run(path, kernel, host, options) as run,
        judges(run, request) as pool,
    ):
        model, multiplier = run.model, run.kernel
        try:
            matrices: dict[str, list[Tensor]] = {}
            for tensor in run.selected():
                if may_be_matrix(tensor):
                    matrices.setdefault(tensor.type.name, []).append(tensor)
            if not matrices:
                raise NothingToVerify(f"nothing to identify in {model.path.name}: it holds no matrix")
            header = IdentifyHeader(
                gguf_verify=project_version(),
                llama_cpp=run.versions["llama_cpp"],
                file=run.file_info().path,
                kernel=multiplier.name,
                definition=multiplier.semantics,
                host=multiplier.runs_on().words,
                reference=run.backend.describe(),
                judged_by=multiplier.judged_by,
            )
            report = IdentifyReport(header, command=command)
            if isinstance(multiplier, Task):
                first = {kind: of[0] for kind, of in matrices.items()}
                report.products += _identify_task(run, multiplier, first)
                matrices = {}
            tasks = (Step(task=TypeTask(kind, tuple(t.name for t in of))) for kind, of in matrices.items())
            with run.bar("identify", len(matrices), "type") as bar:
                for _, found in pool.each(run, tasks):
                    report.products += found.products
                    report.unable += found.unable
                    bar.update()
            report.products = _advised(report.products)
            if model.changed:
                raise EnvironmentFault("a file was changed while it was read")
        finally:
            run.close()
    return report


def _advised(products: list[Identified]) -> list[Identified]:
    """Return the products, with advice where the kernel computes other definitions than it declares.

    It is correct for another definition only if that fits every product for which it declares the same one.
    """
    of_kernel = [p for p in products if p.found is not None and p.of_kernel]
    out = []
    for p in products:
        if p in of_kernel and p.found is not None and p.found.names and not p.right:
            names = {other: other.found.names if other.found else () for other in of_kernel}
            alike = [other for other in of_kernel if other.declared == p.declared]
            if not any(all(name in names[other] for other in alike) for name in p.found.names):
                apart = [f"{other.type} at M={other.m}" for other in alike if not {*p.found.names} & {*names[other]}]
                line = (
                    f"computes {' or '.join(p.found.names)} here, not {p.declared} as declared, and not so in "
                    f"{', '.join(apart) or 'others together'}: no definition fits all of its products, so that none "
                    "can be declared"
                )
                p = replace(p, lines=(line,))
        out.append(p)
    return out


@dataclass
class TypeFound:
    """The products of one type's matrices, and what was skipped: (type, why)."""

    products: list[Identified] = field(default_factory=list)
    unable: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class TypeTask:
    """A type, and the names of the matrices of it."""

    kind: str
    tensors: tuple[str, ...]

    def judge(self, run: Run) -> TypeFound:
        """Identify with the first matrix on which definitions differ. Raises EnvironmentFault."""
        found = TypeFound()
        _one_type(run, found, self.kind, [run.model.tensors[name] for name in self.tensors])
        return found


def _one_type(run: Run, found: TypeFound, kind: str, tensors: list[Tensor]) -> None:
    why = run.uncovered(tensors[0])
    if why is not None:
        found.unable.append((kind, why))
        return
    for tensor in tensors:
        fmt = tensor.type.weights
        assert fmt is not None
        rows = usable_rows(run, tensor, fmt)
        if len(rows):
            break
    else:
        found.unable.append((kind, "no matrix has rows of numbers that are finite, not all zero and not too long"))
        return
    for m in TOKENS:
        call = _Call(tensor, fmt, rows, known_inputs(m, tensor.k))
        found.products.append(_kernel(run, call))
        if run.backend.compared:
            _llama(run, found, call)


@dataclass(frozen=True)
class _Call:
    """A product: rows uint8[N, row bytes] of a matrix, times activations float32[M, K]."""

    tensor: Tensor
    fmt: WeightFormat
    rows: npt.NDArray[np.uint8]
    x: npt.NDArray[np.float32]

    def identified(
        self, who: str, declared: str, found: Identification | None, lines: Iterable[str], of_kernel: bool = False
    ) -> Identified:
        shape = len(self.x), len(self.rows), self.tensor.k
        return Identified(self.fmt.name, self.tensor.name, *shape, who, declared, found, tuple(lines), of_kernel)


def _llama(run: Run, found: TypeFound, call: _Call) -> None:
    """Add llama.cpp's product, judged on the activations as its quantizers made them if the backend reveals these."""
    backend, fmt, x = run.backend, call.fmt, call.x
    try:
        declared = backend.definition(fmt, len(x))
    except NoDefinition as error:
        found.unable.append((f"{fmt.name}, M={len(x)}", f"with --reference {backend.name}: {error}"))
        return
    y = backend.multiply(fmt, call.rows, x, run.options.threads)
    taken = {s.name: backend.activations(s.name, x) for s in definitions(fmt) if s.name in backend.reveals}
    own = None if isinstance(fmt, ElementFormat) else declared
    names = identify(fmt, call.rows, x, y, run.options.threads, taken, own)
    found.products.append(call.identified(backend.who, declared.name, names, _lines(run, call, declared, names, y)))


def usable_rows(run: Run, tensor: Tensor, fmt: WeightFormat) -> npt.NDArray[np.uint8]:
    """The first rows that tell definitions apart, uint8[n, row bytes]: finite, and not of zeros."""
    if not tensor.n_rows or not 0 < tensor.k <= MOST_K:
        return np.zeros((0, 0), np.uint8)
    most = max(1, min(MOST_ROWS, MOST_WEIGHTS // tensor.k))
    rows = run.row_bytes(tensor)[: 4 * most]
    with np.errstate(all="ignore"):
        decoded = fmt.decode(rows.reshape(len(rows), -1, fmt.block_bytes)).reshape(len(rows), -1)
        sound = np.isfinite(decoded).all(axis=1) & (decoded != 0).any(axis=1)
    return np.ascontiguousarray(rows[sound][:most])


def _kernel(run: Run, call: _Call) -> Identified:
    fmt, rows, x = call.fmt, call.rows, call.x
    kernel = run.kernel.of(fmt, len(x), len(rows), call.tensor.k)
    declared = run.semantics(fmt)
    try:
        y = kernel.product(kernel.upload(fmt, rows), x)
        own = None if isinstance(fmt, ElementFormat) else declared
        found = identify_kernel(declared, fmt, rows, x, y, run.options.threads, own)
        return call.identified(kernel.name, declared.name, found, _lines(run, call, declared, found, y), True)
    except KernelFault as error:  # also of its author's oracle
        return call.identified(kernel.name, declared.name, None, (str(error),))


def _lines(
    run: Run, call: _Call, declared: Semantics, found: Identification, y: npt.NDArray[np.float32]
) -> Iterator[str]:
    """Yield explanations of outputs float32[M, N], if another definition than the declared one was identified."""
    if not found.names:
        nearest = min(found.candidates, key=lambda c: c.nmse if np.isfinite(c.nmse) else np.inf)
        yield (
            f"computes none of the known definitions (declared: {declared.name}; nearest: {nearest.name}, "
            f"NMSE {nearest.nmse:.2g})"
        )
        diagnosis = diagnose(y, call.fmt, declared, call.rows, call.x, threads=run.options.threads)
        yield from (f"  {line}" for line in diagnosis.lines)
    elif declared.name not in found.names:
        yield advice(declared, found.names, call.fmt)


# ---- kernels that multiply nothing -----------------------------------------------------------------------------------

#: Least rows and columns of a call.
_LEAST_ROWS, _LEAST_COLUMNS, _LEAST_TOKENS = 64, 1024, 16


def _identify_task(run: Run, kernel: Task, tensors: dict[str, Tensor]) -> Iterator[Identified]:
    """Identify a kernel, for each type that it covers; a quantizer only once.

    Args:
        tensors: type → a matrix of it.

    Raises UsageError for a repacking, which has no definition.
    """
    if isinstance(kernel, Dequantizer):
        for tensor in tensors.values():
            if tensor.type.format is not None and kernel.covers(tensor.type.format):
                yield _dequantizer(run, kernel, tensor, tensor.type.format)
    elif isinstance(kernel, Quantizer):
        yield _quantizer(run, kernel, next(iter(tensors.values())))
    else:
        raise UsageError("identify is of products, dequantizers and quantizers: a repacking has one definition")


def _task_size(kernel: Task, unit: int, seed: int) -> tuple[int, int, int]:
    """M, N and K of a call, as large as is needed, within the domain. Raises UsageError where there is none."""
    shapes = shapes_of(kernel.domain, unit, seed, brief=True)
    if not shapes:
        raise UsageError("no call of the probe plan is in the kernel's domain")
    return next(
        (s for s in shapes if s[1] >= _LEAST_ROWS and s[2] >= _LEAST_COLUMNS), max(shapes, key=lambda s: s[1] * s[2])
    )


def _dequantizer(run: Run, kernel: Dequantizer, tensor: Tensor, fmt: BlockFormat) -> Identified:
    _, n, k = _task_size(kernel, fmt.block_size, run.options.seed)
    rows = any_blocks(fmt, n * k // fmt.block_size, run.options.seed).reshape(n, -1)
    declared = kernel.arithmetic(fmt)
    try:
        values = kernel.dequantize(fmt, rows).reshape(-1, fmt.block_size)
    except KernelFault as error:
        return Identified(fmt.name, tensor.name, 1, n, k, kernel.name, declared, None, (str(error),))
    blocks, found = rows.reshape(-1, fmt.block_bytes), []
    for name in ARITHMETICS:
        if not applies(name, fmt):
            continue
        expected = expected_values(fmt, blocks, kernel.output, name)
        within = not expected.wrong(values).any()
        finite = np.isfinite(values) & np.isfinite(expected.values)
        a, b = (v[finite].astype(np.float64) for v in (values, expected.values))
        energy = float((b * b).sum())
        nmse = float(((a - b) ** 2).sum()) / energy if energy and finite.any() else float("inf")
        used = expected.utilisation(values)
        found.append(Tried(name, float(not within) if used is None else used, 0.0, nmse, within))
    # those whose bits are determined say more
    found.sort(key=lambda c: (not c.within, c.name in BOUNDED, c.nmse))
    made = Identification(tuple(found), values.size, len([c for c in found if c.within]) > 1)
    line = () if declared in made.names else (_task_advice("arithmetic", declared, made.names),)
    return Identified(fmt.name, tensor.name, 1, n, k, kernel.name, declared, made, line)


def _quantizer(run: Run, kernel: Quantizer, tensor: Tensor) -> Identified:
    m, _, k = _task_size(kernel, unit_of(encoding(kernel.encoding)), run.options.seed)
    m = kernel.domain.m.up(max(m, _LEAST_TOKENS)) or m
    x = rounded_float32(known_inputs(m, k), kernel.takes)
    try:
        got = kernel.quantize(x)
    except KernelFault as error:
        return Identified("activations", tensor.name, m, 1, k, kernel.name, kernel.encoding, None, (str(error),))
    found = []
    for name in encodings():
        if k % unit_of(encoding(name)) or encoding(name).row_bytes(k) != got.shape[1]:
            continue
        ordered = kernel.ordered and name == kernel.encoding
        checked = check_bytes(encoding(name), x, got, ordered, kernel.fast_math)
        share = checked.n_wrong / max(1, checked.blocks)
        found.append(Tried(name, share, 0.0, share, not checked.n_wrong))
    found.sort(key=lambda c: (not c.within, c.nmse))
    made = Identification(tuple(found), got.size, len([c for c in found if c.within]) > 1)
    line = () if kernel.encoding in made.names else (_task_advice("activations", kernel.encoding, made.names),)
    return Identified("activations", tensor.name, m, 1, k, kernel.name, kernel.encoding, made, line)


def _task_advice(key: str, declared: str, names: tuple[str, ...]) -> str:
    """The declaration that would be correct."""
    if not names:
        return f"gives what no known {key} gives (declared: {declared})"
    return f'gives {key} = "{names[0]}", not "{declared}" as declared: declare it, or mend the kernel'
