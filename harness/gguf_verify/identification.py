"""`--identify`: which definition the kernel and llama.cpp compute, for each type of a model's matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt

from .diagnosis.diagnose import diagnose
from .diagnosis.identify import Candidate as Tried
from .diagnosis.identify import Identification, advice, definitions, identify, identify_kernel, known_inputs
from .distributed.judges import judges
from .formats import BlockFormat, ElementFormat, WeightFormat
from .gguf.file import Tensor
from .gguf.matrices import may_be_matrix
from .hosts.base import Host
from .invocation import command_of
from .kernels.families import DEFAULT_KERNEL
from .kernels.tasks import Dequantizer, Quantizer, Task
from .processes.sandbox import sandboxed
from .results.options import Options
from .rungs import Run
from .rungs.drawn import Drawn, check_reference
from .rungs.generated_inputs import any_blocks
from .rungs.opening import AnyKernel, Further, Request, open_run
from .rungs.pool import Step
from .rungs.tasks.calls import shapes_of
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
    """What was looked at: the kernel with the definition that it declares, in words where it runs and what judges it,
    and the backend of llama.cpp beside it."""

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
    """All products, and the types that could not be looked at: (type, why)."""

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
    path: Path | str | Drawn, kernel: AnyKernel = DEFAULT_KERNEL, host: Host | str = "auto",
    options: Options | None = None, **further: Unpack[Further],
) -> IdentifyReport:  # fmt: skip
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
                project_version(), run.versions["llama_cpp"], run.file_info().path, multiplier.name,
                multiplier.semantics, multiplier.runs_on().words, run.backend.describe(), multiplier.judged_by,
            )  # fmt: skip
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
    """The products, where a kernel's are of other definitions than it declares with what follows from all of them: it
    is correct for another definition only if that fits every product that it declares the same of."""
    of_kernel = [p for p in products if p.found is not None and p.of_kernel]
    out = []
    for p in products:
        if p in of_kernel and p.found is not None and p.found.names and not p.right:
            alike = [other for other in of_kernel if other.declared == p.declared]
            fitting = [name for name in p.found.names if all(name in (o.found.names if o.found else ()) for o in alike)]
            if not fitting:
                others = ", ".join(
                    f"{o.type} at M={o.m}" for o in alike if o.found and not {*p.found.names} & {*o.found.names}
                ) or "others together"  # fmt: skip
                line = (
                    f"computes {' or '.join(p.found.names)} here, not {p.declared} as declared, and not so in "
                    f"{others}: no definition fits all of its products, so that none can be declared"
                )
                p = replace(p, lines=(line,))
        out.append(p)
    return out


@dataclass
class TypeFound:
    """The products of one type's matrices, and what could not be looked at: (type, why)."""

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
        x = known_inputs(m, tensor.k)
        found.products.append(_kernel(run, tensor, fmt, rows, x))
        if run.backend.compared:
            _llama(run, found, tensor, fmt, rows, x)


def _llama(
    run: Run, found: TypeFound, tensor: Tensor, fmt: WeightFormat, rows: npt.NDArray[np.uint8],
    x: npt.NDArray[np.float32],
) -> None:  # fmt: skip
    """llama.cpp's product, judged on the activations as its quantizers made them if the backend reveals these."""
    try:
        declared = run.backend.definition(fmt, len(x))
    except NoDefinition as error:
        found.unable.append((f"{fmt.name}, M={len(x)}", f"with --reference {run.backend.name}: {error}"))
        return
    backend = run.backend
    y = backend.multiply(fmt, rows, x, run.options.threads)
    taken = {s.name: backend.activations(s.name, x) for s in definitions(fmt) if s.name in backend.reveals}
    found.products.append(_product(run, tensor, fmt, rows, x, backend.who, declared, y, taken))


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


def _kernel(
    run: Run, tensor: Tensor, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.float32]
) -> Identified:
    kernel = run.kernel.of(fmt, len(x), len(rows), tensor.k)
    declared = run.semantics(fmt)
    try:
        y = kernel.product(kernel.upload(fmt, rows), x)
        return replace(_product(run, tensor, fmt, rows, x, kernel.name, declared, y), of_kernel=True)
    except KernelFault as error:  # also of its author's oracle
        shape = (len(x), len(rows), tensor.k)
        return Identified(fmt.name, tensor.name, *shape, kernel.name, declared.name, None, (str(error),))


def _product(
    run: Run, tensor: Tensor, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.float32], who: str,
    semantics: Semantics, y: npt.NDArray[np.float32], taken: Mapping[str, npt.NDArray[np.uint8]] | None = None,
) -> Identified:  # fmt: skip
    threads = run.options.threads
    declared = semantics.name
    own = None if isinstance(fmt, ElementFormat) else semantics
    if taken is None:
        found = identify_kernel(semantics, fmt, rows, x, y, threads, own)
    else:
        found = identify(fmt, rows, x, y, threads, taken, own)
    lines: list[str] = []
    if not found.names:
        nearest = min(found.candidates, key=lambda c: c.nmse if np.isfinite(c.nmse) else np.inf)
        lines.append(
            f"computes none of the known definitions (declared: {declared}; nearest: {nearest.name}, "
            f"NMSE {nearest.nmse:.2g})"
        )
        lines += [f"  {line}" for line in diagnose(y, fmt, semantics, rows, x, threads=threads).lines]
    elif declared not in found.names:
        lines.append(advice(semantics, found.names, fmt))
    return Identified(
        fmt.name, tensor.name, len(x), len(rows), tensor.k, who, declared, found, tuple(lines)
    )  # fmt: skip


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
        raise UsageError("--identify is of products, dequantizers and quantizers: a repacking has one definition")


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
