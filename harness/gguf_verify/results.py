"""The typed records of a verification: what was asked, where it ran, what was checked, what is wrong and why.

The rungs make these records; reports, nights and the pytest plugin only read them. They are msgspec Structs, so that a
report that was written as JSON is checked against the same types when it is read back. This module imports nothing of
the package but `support`.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from .checks import ALONE, BESIDE, BY_ID, BYTES, CHECKS, Check, Skipped, account, check_kind, scope_of
from .processes.sandbox import Sandbox
from .support import stages
from .support.command_line import cores, repeat
from .support.durations import in_words
from .support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_INTERRUPTED,
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_VERIFIED,
    Culprit,
    KernelFault,
    UsageError,
)
from .support.seeds import fresh_seed
from .support.shown import Shown

#: Failures that a rung records one by one; the rest is counted.
MAX_FAILURES = 20
#: Bytes of a block that a failure holds: more than the largest block has (292, of Q8_K).
MAX_HEX_BYTES = 512

#: Begins the line of `KernelInfo.code` that says why CUDA's compiler was not asked about code that ran on the CPU.
NOT_COMPILED = "not compiled by "

DEFAULT_PROMPT = "The quick brown fox jumps over the lazy dog. Once upon a time there was"
DEFAULT_N_PREDICT = 32

RungVerdict = Literal["passed", "waived", "failed", "unverified"]
RungOutcome = Literal["passed", "waived", "failed", "unverified", "broken off"]
ReportVerdict = Literal[
    "verified", "verified on drawn data", "waived", "mismatch", "interrupted", "broken off", "not everything verified",
]  # fmt: skip
WaiverState = Literal["applied", "expired", "unused"]
#: What ended a run before its end: nothing, `Options.exit_first`, `Options.budget`, or a signal.
EndedBy = Literal["", "first failure", "budget", "SIGINT", "SIGTERM", "SIGHUP"]

#: Culprit → its name in a sentence.
CULPRITS: dict[Culprit, str] = {
    "kernel": "the kernel",
    "oracle": "the oracle of the kernel's author",
    "definition": "the definition",
    "file": "the file",
    "llama.cpp": "llama.cpp",
    "verifier": "gguf-verify itself",
    "environment": "this machine",
    "coverage": "missing coverage",
}


# ---- what was asked, and where it ran --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose; the command line's help explains each.

    Args:
        prompt: the text whose activations the kernel meets.
        n_predict: tokens to predict after it.
        threads: for llama.cpp, the CPU host and the exact products; by default one for each core.
        ctx_size: llama.cpp's context in tokens; 0 for what the prompt and the predicted tokens need.
        seed: of everything that is random; by default a new one for each run (`support.seeds`).
        tensor: a regular expression that selects tensors; None for all.
        repack: let llama.cpp repack its weights.
        reference: the device of llama.cpp that the kernel is compared with: "cpu", "gpu" for the first GPU, or ggml's
            name of one.
        llama: the folder of another build of llama.cpp; "" for that of llama-cpp-python.
        exact_on: where exact products are computed: "cpu", "gpu", or "auto" for the GPU where the kernel runs on one.
        time_limit: seconds that llama.cpp may take for one answer.
        kernel_time_limit: seconds that one call of a foreign kernel may take.
        kernel_memory: GiB of memory that a foreign kernel's processes may take together.
        thorough: judge every element of large matrices, too; else some rows, and all outputs by random combinations.
        probes: "full": the whole probe plan, and launches under other schedules; "brief": a small part of the plan.
        sanitize: check launches for races and bad accesses whatever the probes are, and on a GPU, too.
        verbose: let the logs of llama.cpp and of a foreign kernel through.
        progress: show progress bars on standard error; where that is no terminal, a line now and then.
        exit_first: end the run at the first failure that no waiver covers.
        budget: seconds that the run may take; what it does not suffice for is not verified. None for no limit.
        only_call: make this call of the kernel alone, the `id` of a `Call`; "" for all.
        save_case: a folder to write the first wrong product into, as files; "" for none. It must not exist or be empty.
        sandbox: how processes are confined that are not trusted: "auto", "bubblewrap", "landlock" or "none".
        declare: a file that declares a foreign kernel, where its code does not; "" for none.
        imports, loads: modules and libraries that are loaded before PyTorch's operators are looked up.
    """

    prompt: str = DEFAULT_PROMPT
    n_predict: int = DEFAULT_N_PREDICT
    threads: int = field(default_factory=cores)
    ctx_size: int = 0
    seed: int = field(default_factory=fresh_seed)
    tensor: str | None = None
    repack: bool = False
    reference: str = "cpu"
    llama: str = ""
    exact_on: Literal["auto", "cpu", "gpu"] = "auto"
    time_limit: float = 900.0
    kernel_time_limit: float = 60.0
    kernel_memory: float = 16.0
    thorough: bool = False
    probes: Literal["full", "brief"] = "full"
    sanitize: bool = False
    verbose: bool = False
    progress: bool = True
    exit_first: bool = False
    budget: float | None = None
    only_call: str = ""
    save_case: str = ""
    sandbox: str = "auto"
    declare: str = ""
    imports: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()

    @property
    def skips(self) -> Iterator[Skipped]:
        """What these options keep a run from checking, whatever its rungs find. Every option that does is here, or is
        recorded where it takes effect: `SHORTENING` lists both."""
        if self.tensor is not None:
            yield Skipped(
                "tensors", f"only those that match {self.tensor!a} (--tensor)", f"tensors {self.tensor[:60]!a}"
            )
        if self.sandbox == "none":
            yield Skipped("sandbox", "turned off (--sandbox none)", "no sandbox")


#: Options that can make a run check less than a whole one. The others change how or on what it is made.
SHORTENING = frozenset(
    {"tensor", "n_predict", "sandbox", "probes", "thorough", "only_call", "budget", "exit_first", "sanitize"}
)


def spent_words(budget: float | None) -> str:
    """Why something is not verified that a budget did not suffice for."""
    return f"the budget of {in_words(budget)} was spent" if budget is not None else "the budget was spent"


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where a kernel runs.

    Args:
        name: of the host, as `--host` takes it.
        device: the processor's or the card's name; for a kernel in Python that chooses its own device, the interpreter.
        sm: compute capability of the card, such as "90"; None on a CPU.
        threads: operating-system threads that a launch takes; None where the host does not choose.
        compiler: name and version of the C++ compiler.
        driver, nvrtc, cupy: versions of CUDA's driver, of NVRTC and of CuPy.
        own_process: the kernel runs in a process of its own.
        copies: that process copies outputs from a card to where they are judged, and its word is that it did.
        chosen: who decided that it runs there.
    """

    name: str
    device: str
    sm: str | None = None
    threads: int | None = None
    compiler: str = ""
    driver: str = ""
    nvrtc: str = ""
    cupy: str = ""
    own_process: bool = False
    copies: bool = False
    chosen: str = ""

    @property
    def words(self) -> str:
        """The host in one line."""
        device = self.device if self.sm is None else f"{self.device} (sm_{self.sm})"
        parts = [f"{self.name}: {device}" if self.name else device]
        if self.threads is not None:
            parts.append(f"{self.threads} threads")
        for title, value in (("", self.compiler), ("CUDA driver ", self.driver), ("NVRTC ", self.nvrtc)):
            parts += [f"{title}{value}"] if value else []
        parts += [f"CuPy {self.cupy}"] if self.cupy else []
        parts += ["in its own process"] if self.own_process else []
        parts += ["which copies its outputs"] if self.copies else []
        return ", ".join(parts)


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of everything that a result may depend on; `llama_build` holds the features of llama.cpp's build."""

    gguf_verify: str
    python: str
    numpy: str
    gguf: str
    llama_cpp_python: str
    llama_cpp: str
    ggml: str
    llama_build: str
    platform: str
    byte_order: str


class OpenedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What a foreign kernel is made of, as it was opened: what the loader mapped into its processes, and what compilers
    read for it. The files of Python and of this project are not listed.

    Args:
        files: absolute path → sha256; null where it cannot be read or was replaced meanwhile. "/proc/self/maps" stands
            for those of a process that hides them, and words for those that a compiler does not list.
        packages: installed packages of which a file was opened → version; their files are not listed.
    """

    files: dict[str, str | None] = {}
    packages: dict[str, str] = {}

    def with_(self, other: OpenedFiles) -> OpenedFiles:
        """These and others. A file that two processes opened with other content is null."""
        files = {**self.files, **other.files}
        for path in self.files.keys() & other.files.keys():
            if self.files[path] != other.files[path]:
                files[path] = None
        packages = {**self.packages, **other.packages}
        return OpenedFiles(files=dict(sorted(files.items())), packages=dict(sorted(packages.items())))


class KernelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel that is verified.

    Args:
        name: as `--kernel` takes it.
        computes: what it computes: "gemm", "experts", "dequantize", "quantize" or "repack".
        definition: the definition of the product that it declares; of another kernel, what it declares, in words.
        judged_by: what judges it, where that is no definition of this project; None elsewhere.
        verified_means: what "verified" says of such a kernel; None elsewhere.
        order: its declared order of summation, in words.
        covers: names of the quantized types that it multiplies.
        element_kernels: type → the kernel that multiplies matrices of that type which are not quantized.
        element_host: where those kernels run.
        code: which code of a foreign kernel was run: what compiled it, with which flags, and which parts of it were not
            compiled; or the digest of a binary.
        hints: what its declaration may have wrong, by its source, each in a line.
        declares: what it declares beside the name of its definition, in words.
        opened: the files that a foreign kernel is made of.
    """

    name: str
    definition: str
    judged_by: str | None
    verified_means: str | None
    order: str
    covers: tuple[str, ...]
    element_kernels: dict[str, str]
    element_host: HostInfo
    computes: str = "gemm"
    code: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    declares: tuple[str, ...] = ()
    opened: OpenedFiles = OpenedFiles()

    @property
    def declared(self) -> str:
        """All that it declares, in a line: the definition, and what stands beside its name."""
        return ", ".join((self.definition, *self.declares))


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model's file: `sha256` has a digest for each part of a split model, `tensor_types` counts tensors by type."""

    path: str
    size: int
    sha256: tuple[str, ...]
    architecture: str
    tensor_types: dict[str, int]


class DrawnProduct(msgspec.Struct, frozen=True, kw_only=True):
    """A product of drawn data: the weights' type, tokens, rows and columns."""

    type: str
    m: int
    n: int
    k: int


class DrawnData(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel was verified on where no model was at hand.

    Args:
        seed: of all that was drawn.
        products: that took the place of a model's graph.
        weights, activations: how they were drawn, in words.
        compared: llama.cpp computed the same products, and its outputs and the kernel's were compared.
    """

    seed: int
    products: tuple[DrawnProduct, ...] = ()
    weights: str = ""
    activations: str = ""
    compared: bool = False

    @property
    def words(self) -> str:
        """All of it in one line."""
        sizes = dict[str, list[str]]()
        for p in self.products:
            sizes.setdefault(f"{p.m}×{p.n}×{p.k}", []).append(p.type)
        listed = "; ".join(f"{', '.join(types)}: M×N×K = {size}" for size, types in sizes.items())
        return f"{listed or 'nothing'}; weights: {self.weights}; activations: {self.activations}; seed {self.seed}"


class ReferenceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp as the reference: where it ran, in words, and type → the definitions of its products with that type."""

    where: str
    definitions: dict[str, str]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that could matter to repeat a run.

    Args:
        exact_on: where exact products were computed, in words.
        sandbox: how processes were confined that are not trusted: a foreign kernel's, its compiler's, llama.cpp's and
            gguf-py's.
    """

    versions: Versions
    host: HostInfo
    kernel: KernelInfo
    file: FileInfo
    reference: ReferenceInfo
    sandbox: Sandbox
    options: Options
    exact_on: str = "NumPy"


# ---- what a rung found -----------------------------------------------------------------------------------------------


#: Kinds of calls: see `Call`.
CallKind = Literal[
    "block", "own", "shared", "other-m", "reference", "cut", "quantizer", "every-size", "probe", "schedule", "grid",
    "index", "graft", "routing", "tensor", "again",
]  # fmt: skip


#: What a wrong call is to a reader, the most important first: a product of the model, a bad access to memory at another
#: shape, a product of another shape, a launch past a limit.
OWN, MEMORY, OTHER_SHAPE, LIMIT = range(4)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the kernel, beside its rung and its tensor: what `--only-call` needs to make it again.

    Args:
        kind: "block": a block of K, in the blocks rung. "own", "shared": of the graph's product, on activations that
            the kernel quantizes itself, and on llama.cpp's activation bytes. "other-m": with other numbers of tokens.
            "reference": llama.cpp's own. "cut": with a row and a block fewer. "quantizer", "every-size": of the
            kernel's quantizer, the second with values of every size. "probe": of the probe plan. "schedule": under
            another schedule. "grid", "index": of what no host can run whole. "graft": of the tokens rung. "routing": of
            experts, by ids. "tensor": of a kernel that multiplies nothing, on what the model holds. "again": as
            "other-m", made many times.
        number: of the block, the trial, the probe or the schedule; of a quantizer's call, one more than its trial's,
            and 0 on the graph's tokens; of a graft, its pass: 0 for (a), 1 for (b).
        given: activations are handed over as bytes, where a kind knows both.
        first_row: with which the matrix, or the part of it, begins in its tensor.
        use: how many products with that matrix came before in the rung, or grafts in the pass.
        m, n, k: tokens, rows, columns; 0 where they say nothing.
    """

    kind: CallKind
    number: int = 0
    given: bool = False
    first_row: int = 0
    use: int = 0
    m: int = 0
    n: int = 0
    k: int = 0

    @property
    def rank(self) -> int:
        """How far it is from the model's own products: 0 for these, 2 for other shapes, 3 for launches that no host
        makes whole."""
        if self.kind in ("grid", "index"):
            return LIMIT
        other = self.kind in ("other-m", "cut", "every-size", "probe", "routing")
        return OTHER_SHAPE if other or (self.kind == "quantizer" and self.number) else OWN

    @property
    def id(self) -> str:
        """As `--only-call` takes it: "probe,number=13,given=1,m=6,n=70,k=768"."""
        fields = msgspec.structs.asdict(self)
        return ",".join([self.kind, *(f"{name}={int(v)}" for name, v in fields.items() if name != "kind" and v)])

    def fits(self, graphs: tuple[int, int, int]) -> bool:
        """Whether the sizes that it names are those of a product (M, N, K) of the graph, as far as its kind follows
        them: a call that no product of this run was must not be made in its place."""
        follows = {"own": 3, "shared": 3, "reference": 3, "other-m": 2, "again": 2}.get(self.kind, 0)
        sizes = zip((self.n, self.k, self.m), (*graphs[1:], graphs[0]), strict=True)
        return all(asked in (0, there) for asked, there in list(sizes)[:follows])

    @classmethod
    def parse(cls, text: str) -> Call:
        """The call of this `id`. Raises UsageError."""
        kind, _, rest = text.partition(",")
        fields: dict[str, object] = {"kind": kind}
        for part in rest.split(",") if rest else []:
            found = re.fullmatch(r"([a-z_]+)=([0-9]{1,18})", part)
            if found is None or found[1] in fields:
                raise UsageError(f"--only-call: {part[:40]!a} is not NAME=NUMBER; copy it from a report")
            fields[found[1]] = bool(int(found[2])) if found[1] == "given" else int(found[2])
        if unknown := [name for name in fields if name not in cls.__struct_fields__]:
            raise UsageError(f"--only-call: a call has no {unknown[0]}; copy it from a report")
        try:
            made = msgspec.convert(fields, cls)
        except msgspec.ValidationError:
            raise UsageError(f"--only-call: no kind of call is {kind[:40]!a}; copy it from a report") from None
        if made.kind in ("other-m", "again", "quantizer") and not made.m:
            raise UsageError(f"--only-call: a call of kind {made.kind} has m=NUMBER; copy it from a report")
        return made


class Frame(msgspec.Struct, frozen=True):
    """A frame of a kernel's traceback: "FILE:LINE in FUNCTION", its source, and whether it is of its author's code."""

    place: str
    code: str
    own: bool


class Failure(msgspec.Struct, frozen=True):
    """One thing that is wrong, with all that is needed to look at it.

    Args:
        what: in words.
        tensor: name of the weights, "" where it is not about one.
        row: row n of the weights; it counts through all matrices of a tensor that holds several.
        block: block of that row, or 32 values of a type without blocks; None where no single one explains it.
        token: row m of the activations.
        byte_offset: of the block, in its file; `part` counts the files of a split model from 0.
        block_hex: the block's bytes.
        block_type: the type of its weights, where it is recorded with the failure.
        got, expected, bound, utilisation: the numbers, where it is about numbers.
        matrix: which of the tensor's matrices (experts) the row is in, where it holds several.
        culprit: who is at fault.
        activation_type, activation_hex: type and bytes of the activations that the block is multiplied by: one block or
            several (as many as there is room for), or float32; "" and None where no block is known.
        cause: what further failures of the same cause have in common, of which a rung records the first only; "" for
            a failure that stands for itself.
        call: the call of the kernel that it is of, where it is of one.
        trace: the frames of the exception that the kernel raised, outermost first.
    """

    what: str
    tensor: str = ""
    row: int | None = None
    block: int | None = None
    token: int | None = None
    byte_offset: int | None = None
    block_hex: str | None = None
    got: float | None = None
    expected: float | None = None
    bound: float | None = None
    utilisation: float | None = None
    part: int = 0
    matrix: int | None = None
    culprit: Culprit = "kernel"
    activation_type: str = ""
    activation_hex: str | None = None
    cause: str = ""
    call: Call | None = None
    block_type: str = ""
    trace: tuple[Frame, ...] = ()

    @property
    def rank(self) -> int:
        """That of its call; what is of no call is of the model."""
        return OWN if self.call is None else self.call.rank

    @classmethod
    def of(cls, error: KernelFault, what: str, tensor: str = "", matrix: int | None = None) -> Failure:
        """What a kernel did in place of giving an output."""
        return cls(
            what, tensor, matrix=matrix, culprit=error.culprit, cause=error.cause, call=error.call,
            trace=tuple(Frame(*frame) for frame in error.trace),
        )  # fmt: skip


class Unverified(msgspec.Struct, frozen=True):
    """Something that should have been checked and could not be.

    Args:
        name: what it is, as a report shows it.
        why: why it could not be checked.
        tensor: the name of the tensor that it is about; "" for all that the rung checks.
        culprit: who is at fault.
        products: the number of products that it stands for, where these are counted; 0 elsewhere.
    """

    name: str
    why: str
    tensor: str = ""
    culprit: Culprit = "coverage"
    products: int = 0

    @property
    def title(self) -> str:
        """The name, with the number of products where they are counted."""
        if not self.products:
            return self.name
        return f"{self.products:,} product{'' if self.products == 1 else 's'} of {self.name}"


class Side(msgspec.Struct, frozen=True):
    """Whose output was judged: its name in reports, and whether it is the kernel's (else it is llama.cpp's)."""

    name: str
    of_kernel: bool


class Worst(msgspec.Struct, frozen=True):
    """The worst of one side: the largest utilisation of the bound and where it was, and the largest score anywhere."""

    utilisation: float
    where: str
    score: float
    of_kernel: bool


class TensorBytes(msgspec.Struct, frozen=True, tag_field="record", tag="tensor bytes"):
    """A tensor of the bytes rung: `n_blocks` blocks (or values) in `nbytes` bytes from `offset` on."""

    tensor: str
    type: str
    n_blocks: int
    nbytes: int
    offset: int
    failures: int


class TensorBlocks(msgspec.Struct, frozen=True, tag_field="record", tag="tensor blocks"):
    """A tensor of the blocks rung, of which `n_blocks` blocks were multiplied."""

    tensor: str
    type: str
    n_blocks: int
    failures: int


class TensorValues(msgspec.Struct, frozen=True, tag_field="record", tag="tensor values"):
    """A tensor of the values or the packing rung, of which `n_blocks` blocks were dequantized, or repacked."""

    tensor: str
    type: str
    n_blocks: int
    failures: int


class GemmRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="gemm"):
    """A GEMM of the layers rung, with the worst utilisation of each output that was judged.

    Args:
        tensor, matrix: the weights' name, and which of its matrices (experts) this is, where it holds several.
        node: llama.cpp's name of the node in the graph.
        type: the weights' type.
        m, n, k: tokens, rows, columns.
        kernel: the name of the kernel that multiplied.
        llama_definition: what llama.cpp computed.
        own: the kernel on activations that it quantized itself.
        shared: the kernel on llama.cpp's own activation bytes.
        other_m: the kernel with other numbers of tokens.
        other_shapes: the kernel at other N and K; None where it was not run there.
        llama: llama.cpp's own output against its own definition; None where llama.cpp was not asked.
        gap_nmse: NMSE between the two definitions' exact results.
        failures: how many outputs were wrong.
        under_test: the kernel is the one that the run verifies, not one that stands beside it.
    """

    tensor: str
    matrix: int | None
    node: str
    type: str
    m: int
    n: int
    k: int
    kernel: str
    llama_definition: str
    own: float
    shared: float
    other_m: float
    other_shapes: float | None
    llama: float | None
    gap_nmse: float
    failures: int
    under_test: bool = True

    @property
    def worst(self) -> float:
        """The kernel's largest utilisation; infinite where one is not a number."""
        values = [v for v in (self.own, self.shared, self.other_m, self.other_shapes) if v is not None]
        return math.inf if any(map(math.isnan, values)) else max(values)


class TypeEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """For which products with weights of one type a report holds, beside those of the model's graph.

    Args:
        type: of the weights.
        plan: the version of the probe plan.
        probes: "full" or "brief", as in `Options`.
        domain: what the kernel declares, in words; empty for everything.
        calls: that were made and judged.
        tokens, rows, columns: the numbers at which all outputs were right, as ranges.
        values: what the weights and activations were.
        indices: large products of which some thread blocks ran by themselves, and were right.
        grids: tokens, rows and columns whose launches CUDA would make.
        not_covered: what the plan asks for and could not be tried, and why.
        under_test: the kernel is the one that the run verifies, not one that stands beside it.
    """

    type: str
    plan: int
    probes: str
    domain: str
    calls: int
    tokens: str
    rows: str
    columns: str
    values: tuple[str, ...]
    indices: tuple[str, ...] = ()
    grids: tuple[str, ...] = ()
    not_covered: tuple[tuple[str, str], ...]
    under_test: bool


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="token"):
    """A predicted token: llama.cpp's, the kernel's on llama.cpp's activations and on its own, the exact product's."""

    position: int
    text: str
    llama: int
    shared: int
    own: int
    exact: int


class EmbeddingRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="embedding"):
    """An embedding of a model that does not generate: cosines to llama.cpp's own of the same three, and the largest
    difference of an element on the kernel's own activations."""

    position: int
    text: str
    shared: float
    own: float
    exact: float
    own_difference: float


Detail = TensorBytes | TensorBlocks | TensorValues | GemmRecord | TokenRecord | EmbeddingRecord


class OutputMap(msgspec.Struct, frozen=True, kw_only=True):
    """The first wrong GEMM's output on a grid of cells.

    Args:
        tensor, where, who: which output it is: weights, their name as it is shown, whose output at which M.
        m, n: tokens and rows of the output.
        tokens_per_cell, rows_per_cell: a cell's size.
        utilisation: the largest of each cell, one list for each step of tokens.
        wrong: how many outputs of each cell are wrong.
        tile_tokens, tile_rows: outputs that one thread block of the kernel computes; 0 where that is not known.
    """

    tensor: str
    where: str
    who: str
    m: int
    n: int
    tokens_per_cell: int
    rows_per_cell: int
    utilisation: list[list[float]]
    wrong: list[list[int]]
    tile_tokens: int = 0
    tile_rows: int = 0


class FaultMatch(msgspec.Struct, frozen=True):
    """A fault of the catalogue that explains wrong outputs.

    Args:
        id: of the fault, stable.
        words: what is wrong, with the variant.
        fix: one line.
        explained: share of the error, 1 for all of it; NaN where the fault was seen in further calls, not computed.
        utilisation: the worst |y - f| / bound over the wrong outputs, with f what the fault predicts; 0 where f is
            nowhere finite.
        everywhere: right outputs agree with the fault too; else it is in part of the outputs only.
    """

    id: str
    words: str
    fix: str
    explained: float
    utilisation: float
    everywhere: bool


class NearestFault(msgspec.Struct, frozen=True):
    """The fault that explains the largest share of an error that no fault explains."""

    id: str
    explained: float


class OutOfRange(msgspec.Struct, frozen=True, kw_only=True):
    """A number that the file or the definition cannot represent, so that a product has no finite exact value.

    Args:
        what: "weight", "weight scale", "activation", "d", "s", "product" (of scales), "sum" (in half) or "output".
        row, token: of the first output without a finite exact value.
        block: the block that the number belongs to; of weights and activations that are not quantized, the value.
        value: what the number is, or would be in a type without limits; not finite where that is not known.
        limit: the largest number that its type holds.
        ratio: |value| / limit.
    """

    what: str
    row: int
    token: int
    block: int
    value: float
    limit: float
    ratio: float


class Headroom(msgspec.Struct, frozen=True, kw_only=True):
    """The half that came nearest to overflowing, among all activations of the graph.

    Args:
        what: "d" or "s".
        tensor, token, block: whose activations, and where.
        value, limit: the number, and the largest that its type holds.
        of_llama: llama.cpp's CUDA backend keeps this number in the same type.
    """

    what: str
    tensor: str
    token: int
    block: int
    value: float
    limit: float
    of_llama: bool = False

    @property
    def ratio(self) -> float:
        """|value| / limit: above 1 it would overflow."""
        return abs(self.value) / self.limit

    @property
    def words(self) -> str:
        """In a line, but for the tensor."""
        shared = "; llama.cpp's CUDA backend keeps it in a half too" if self.of_llama else ""
        return (
            f"the largest half among its activations is {self.what} = {self.value:.4g}, {self.ratio:.2g} times "
            f"{self.limit:g}, at token {self.token}, block {self.block}{shared}"
        )


#: Verdicts of a diagnosis, the least telling first.
UNEXPLAINED = ("another order", "out of range", "unknown")
_TELLING = (*UNEXPLAINED, "another definition", "known fault")
#: Faults that are bad accesses to memory.
MEMORY_FAULTS = frozenset({
    "data-race", "outside-buffers", "uninitialized-memory", "misaligned-access", "input-written", "divergent-barrier",
})  # fmt: skip


class LocatedDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What explains a wrong call.

    Args:
        tensor, where, who: as in `OutputMap`.
        row, token, block: of the first wrong output; the block is None where no single one is to blame.
        verdict: "another definition", "known fault", "another order", "out of range" or "unknown".
        wrong, outputs: how many outputs are wrong, of how many.
        definitions: other definitions within whose bound all outputs are.
        faults: the faults that explain the outputs; several cannot be told apart on these data.
        nearest: the nearest fault, where none explains them.
        out_of_range: why some outputs have no finite exact value, where some have none.
        culprit: who is at fault.
        lines: the diagnosis in words.
        type: of the weights.
        call: which call it is.
    """

    tensor: str
    where: str
    who: str
    row: int
    token: int
    block: int | None
    verdict: str
    wrong: int
    outputs: int
    definitions: tuple[str, ...] = ()
    faults: tuple[FaultMatch, ...] = ()
    nearest: NearestFault | None = None
    out_of_range: OutOfRange | None = None
    culprit: Culprit = "kernel"
    lines: tuple[str, ...] = ()
    type: str = ""
    call: Call | None = None

    @property
    def rank(self) -> int:
        """What the call is to a reader; a bad access to memory comes before other calls of its shape."""
        rank = OWN if self.call is None else self.call.rank
        return MEMORY if rank == OTHER_SHAPE and any(f.id in MEMORY_FAULTS for f in self.faults) else rank

    @property
    def weight(self) -> tuple[int, int]:
        """The most important diagnosis has the smallest."""
        telling = _TELLING.index(self.verdict) if self.verdict in _TELLING else len(_TELLING)
        return self.rank, -telling

    @property
    def explains(self) -> bool:
        """Whether it says what is wrong."""
        return self.verdict not in UNEXPLAINED

    def is_of(self, failure: Failure) -> bool:
        """Whether a failure is of the call that it explains."""
        return self.call is not None and failure.call == self.call and failure.tensor == self.tensor


class Sampled(msgspec.Struct, frozen=True):
    """What of large matrices was judged element by element, where not all was.

    Args:
        what: "outputs" of whole products, or "blocks" that are multiplied one by one.
        of: how many there are of them in such matrices.
        alone: how many were judged one by one. All other outputs were checked by random combinations of rows; other
            blocks only as parts of their rows, by higher rungs.
        missed: the largest probability with which those combinations miss wrong outputs of one token whose errors have,
            as the root of the sum of their squares, more than twice `smallest`; None for blocks.
        smallest: the error from which on a single wrong output is never missed, as a share of the root mean square of
            its token's outputs: the largest of any token of any product. None for blocks.
    """

    what: str
    of: int
    alone: int
    missed: float | None = None
    smallest: float | None = None

    def joined(self, other: Sampled) -> Sampled:
        """Both together, of the same kind."""
        missed = None if self.missed is None else max(self.missed, other.missed or 0.0)
        smallest = None if self.smallest is None else max(self.smallest, other.smallest or 0.0)
        return Sampled(self.what, self.of + other.of, self.alone + other.alone, missed, smallest)

    @property
    def words(self) -> str:
        """In a line."""
        said = f"{self.alone:,} of {self.of:,} {self.what} of large matrices were judged one by one"
        if self.missed is None or self.smallest is None:
            return f"{said}, the others within their rows"
        return (
            f"{said}, all by random combinations of rows: a wrong output is never missed if its error is more than "
            f"{self.smallest:.2g} of the size of its token's outputs, and several with a probability of at most "
            f"{self.missed:.1g} if the root of the sum of their squares is more than twice that"
        )


class Closer(msgspec.Struct, frozen=True):
    """Products whose bound for any order of roundings could not have failed, and that were judged by what correct
    kernels lose: see `semantics.closer`.

    Args:
        products: that were judged so.
        outputs: of these products.
        judged: outputs that were judged so; the others were judged by the bound alone.
        together: products of which the outputs of each token, or of all tokens, were judged together.
    """

    products: int
    outputs: int
    judged: int
    together: int

    def joined(self, other: Closer) -> Closer:
        """Both together."""
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Closer(*(a + b for a, b in zip(mine, theirs, strict=True)))

    @property
    def words(self) -> str:
        """In a line."""
        n = f"{self.products:,} product{'' if self.products == 1 else 's'}"
        words = (
            f"{n} judged by what kernels' orders of summation lose, since the bound for any order would accept zeros: "
            f"{self.judged:,} of {self.outputs:,} outputs"
        )
        if not self.together:
            return words
        return (
            f"{words}; in {self.together:,} of them all outputs of a token, or of all tokens, together: a correct "
            "kernel fails with a probability of at most 1e-09, and errors of twice their limit are missed as seldom"
        )


class RungResult(msgspec.Struct, kw_only=True):
    """One rung of one run.

    Args:
        name: of the rung.
        question: that it answers.
        substance: kinds of `checked` of which at least one must have been checked, or nothing was verified.
        checked: what was checked, by kind, in the order in which a report names it.
        not_checked: what this rung does not check by design, by kind.
        unverified: what should have been checked and could not be.
        failures: the first MAX_FAILURES; `n_failures` counts all.
        blamed: who is at fault → for how many of the failures.
        failing: tensor → how many of the failures are of it; "" for those of none.
        waived: tensor → how many of its failures a waiver covers.
        same: cause → how many failures have it.
        worst: whose output → its worst.
        figures: measured numbers that are not judged, by name.
        notes: what a reader should know, a line each.
        details: one record a tensor, GEMM or token.
        envelopes: for each type, beyond which products of the graph the rung holds.
        headroom: of the activations' halves, the one nearest to overflow; None where there are none.
        sampled: what of large matrices was judged element by element; None where all was.
        closer: products that were judged more closely than by their bound; None where there are none.
        done: class of checks (`checks.CHECKS`) → how many things of it were checked, beside those of `checked`; 0 where
            this rung has nothing of the class.
        skipped: classes of checks, or parts of them, that were not done, and why.
        diagnosis: what explains the most important wrong call: of the model's own products before other shapes, and
            these before limits.
        other_diagnoses: the same for each other type of weights.
        heat_map: the output of the call that `diagnosis` explains.
        fault: what broke the rung off (a crash of llama.cpp, for example), or None.
        fault_culprit: who is at fault for that.
        seconds: how long it took.
        stages: stage of a call → seconds that were spent in it; see `support.stages`. They do not add up to `seconds`.
    """

    name: str
    question: str = ""
    substance: tuple[str, ...] = ()
    checked: dict[str, int] = {}
    not_checked: dict[str, int] = {}
    unverified: list[Unverified] = []
    failures: list[Failure] = []
    n_failures: int = 0
    blamed: dict[Culprit, int] = {}
    failing: dict[str, int] = {}
    waived: dict[str, int] = {}
    same: dict[str, int] = {}
    worst: dict[str, Worst] = {}
    figures: dict[str, float] = {}
    notes: list[str] = []
    details: list[Detail] = []
    envelopes: list[TypeEnvelope] = []
    headroom: Headroom | None = None
    sampled: Sampled | None = None
    closer: Closer | None = None
    done: dict[str, int] = {}
    skipped: list[Skipped] = []
    diagnosis: LocatedDiagnosis | None = None
    other_diagnoses: tuple[LocatedDiagnosis, ...] = ()
    heat_map: OutputMap | None = None
    fault: str | None = None
    fault_culprit: Culprit = "environment"
    seconds: float = 0.0
    stages: dict[str, float] = {}

    #: Causes that `same` counts.
    most_causes: ClassVar[int] = MAX_FAILURES

    def __bool__(self) -> bool:
        """A rung is neither true nor false, since `if report.rung("layers"):` could ask for either of two things: say
        `rung.passed`, or `rung is not None`. Raises TypeError."""
        raise TypeError("a RungResult is neither true nor false: ask for `passed`, or whether it `is not None`")

    @property
    def passed(self) -> bool:
        """Whether it has checked something, and all that it should have, and found nothing wrong."""
        return self.verdict == "passed"

    @property
    def verdict(self) -> RungVerdict:
        """A rung that measured nothing has not passed, and one with a waived failure has not passed either."""
        if self.n_failures != self.n_waived:
            return "failed"
        if self.unverified or self.fault or not any(map(self.checked.get, self.substance)):
            return "unverified"
        return "waived" if self.n_failures else "passed"

    @property
    def n_waived(self) -> int:
        """How many of the failures a waiver covers."""
        return sum(self.waived.values())

    @property
    def outcome(self) -> RungOutcome:
        """The verdict, or that the rung was broken off."""
        return "broken off" if self.fault else self.verdict

    @property
    def worst_utilisation(self) -> float | None:
        """The largest of all sides, where NaN counts as infinite; None where no bound was judged."""
        values = [math.inf if math.isnan(w.utilisation) else w.utilisation for w in self.worst.values()]
        return max(values, default=None)

    @property
    def gemms(self) -> list[GemmRecord]:
        """The records of GEMMs."""
        return [record for record in self.details if isinstance(record, GemmRecord)]

    @property
    def diagnoses(self) -> tuple[LocatedDiagnosis, ...]:
        """The diagnosis of each type, the most important first."""
        return () if self.diagnosis is None else (self.diagnosis, *self.other_diagnoses)

    def explain(self, found: LocatedDiagnosis) -> bool:
        """Keep a diagnosis if it is more important than that of its type; whether it is."""
        kept = {d.type: d for d in self.diagnoses}
        if found.type in kept and kept[found.type].weight <= found.weight:
            return False
        kept[found.type] = found
        self.diagnosis, *others = sorted(kept.values(), key=lambda d: d.weight)
        self.other_diagnoses = tuple(others)
        return True

    def room(self, rank: int = OWN) -> int:
        """How many more failures of calls of a rank it lists: they take the places of less important ones."""
        return max(0, MAX_FAILURES - sum(f.rank <= rank for f in self.failures))

    def _list(self, failure: Failure) -> None:
        """List a failure, if there is room and no failure of its cause is listed that is as important."""
        of_cause = next((i for i, f in enumerate(self.failures) if failure.cause and f.cause == failure.cause), None)
        if of_cause is not None and self.failures[of_cause].rank <= failure.rank:
            return
        if self.room(failure.rank):
            if of_cause is not None:
                del self.failures[of_cause]
            self.failures.append(failure)
            self._make_room()

    def _make_room(self) -> None:
        """Drop the least important of too many."""
        if len(self.failures) > MAX_FAILURES:
            del self.failures[max(range(len(self.failures)), key=lambda i: (self.failures[i].rank, i))]

    def count(self, kind: str, n: int = 1) -> None:
        """Record that n things were checked. Raises ValueError for a kind that belongs to no class of checks."""
        check_kind(kind, self.substance)
        self.checked[kind] = self.checked.get(kind, 0) + n

    def count_beside(self, kind: str, n: int, under_test: bool) -> None:
        """Record that n things were checked, by the kernel under test or by one that stands beside it."""
        self.count(kind if under_test else f"{kind}{BESIDE}", n)

    def did(self, check: str, n: int = 1) -> None:
        """Record that n things of a class of checks were done; 0: there is nothing of it in this rung. Raises KeyError
        for a class that does not exist."""
        self.done[BY_ID[check].id] = self.done.get(check, 0) + n

    def omit(self, check: str, why: str, scope: str = "") -> None:
        """Record, once, that a class of checks or a part of it was not done: see `Skipped`. Raises KeyError."""
        self._omit(Skipped(BY_ID[check].id, why, scope))

    def _omit(self, skipped: Skipped) -> None:
        if skipped not in self.skipped:
            self.skipped.append(skipped)

    def skip(self, kind: str, n: int = 1) -> None:
        """Record that n things are not for this rung to check."""
        self.not_checked[kind] = self.not_checked.get(kind, 0) + n

    def fail(self, failure: Failure, n: int = 1) -> None:
        """Record a failure that stands for n of them; one of a cause that is recorded is only counted. What was not run
        has not failed: it could not be checked."""
        if failure.culprit == "coverage":
            self.leave_products(failure.tensor or "the kernel", failure.cause or failure.what, failure.tensor, n)
            return
        self.fail_more(failure.culprit, n, failure.tensor)
        if failure.cause in self.same or (failure.cause and len(self.same) < self.most_causes):
            self.same[failure.cause] = self.same.get(failure.cause, 0) + n
        self._list(failure)

    def fail_more(self, culprit: Culprit, n: int, tensor: str) -> None:
        """Count n further failures of a tensor ("" for none), which are not recorded one by one."""
        if n:
            self.n_failures += n
            self.blamed[culprit] = self.blamed.get(culprit, 0) + n
            self.failing[tensor] = self.failing.get(tensor, 0) + n

    def leave(self, name: str, why: str, tensor: str | None = None, culprit: Culprit = "coverage") -> None:
        """Record something that could not be checked, once; `tensor` is the tensor's name if `name` says more."""
        self._leave(Unverified(name, why, name if tensor is None else tensor, culprit))

    def leave_all(self, kind: str, why: str, culprit: Culprit = "coverage") -> None:
        """Record that nothing of a kind could be checked."""
        self._leave(Unverified(f"all {kind}", why, "", culprit))

    def leave_products(self, name: str, why: str, tensor: str, n: int = 1) -> None:
        """Record n products that could not be checked; those of one name, reason and tensor are counted together."""
        self._leave(Unverified(name, why, tensor, products=n))

    def _leave(self, left: Unverified) -> None:
        for i, known in enumerate(self.unverified):
            if left == msgspec.structs.replace(known, products=left.products):
                self.unverified[i] = msgspec.structs.replace(known, products=known.products + left.products)
                return
        self.unverified.append(left)

    def note(self, line: str, first: bool = False) -> None:
        """Record what a reader should know, once; `first`, before others, where it says what was not looked for."""
        if line not in self.notes:
            self.notes.insert(0 if first else len(self.notes), line)

    def keep_headroom(self, found: Headroom | None) -> None:
        """Keep the one that is nearest to its limit."""
        if found is not None and (self.headroom is None or found.ratio > self.headroom.ratio):
            self.headroom = found

    def measure(self, side: Side, utilisation: float, score: float, where: str) -> None:
        """Keep the worst utilisation and the worst score of a side; NaN counts as the worst."""
        last = self.worst.get(side.name)
        if last is not None:
            score = last.score if score <= last.score or math.isnan(last.score) else score
            if utilisation <= last.utilisation or math.isnan(last.utilisation):
                utilisation, where = last.utilisation, last.where
        self.worst[side.name] = Worst(utilisation, where, score, side.of_kernel)

    def join(self, part: PartialResult) -> None:
        """Record what a part of the work found, as if it had been recorded here, after what is recorded already. The
        diagnosis and the map of a part are not taken: whoever joins decides which are kept."""
        n = self.n_failures
        for failure in part.failures:
            self._list(failure)  # what they count is in the part's own sums
        self.n_failures = n + part.n_failures
        for cause, n in part.same.items():
            if cause in self.same or len(self.same) < self.most_causes:
                self.same[cause] = self.same.get(cause, 0) + n
        for mine, theirs in (
            (self.checked, part.checked), (self.not_checked, part.not_checked), (self.figures, part.figures),
            (self.blamed, part.blamed), (self.failing, part.failing), (self.stages, part.stages),
            (self.done, part.done),
        ):  # fmt: skip
            _add(mine, theirs)
        for skipped in part.skipped:
            self._omit(skipped)
        for left in part.unverified:
            self._leave(left)
        for line in reversed(part.leading):
            self.note(line, first=True)
        for line in part.notes[len(part.leading) :]:
            if part.closer is None or line != part.closer.words:
                self.note(line)
        for name, worst in part.worst.items():
            self.measure(Side(name, worst.of_kernel), worst.utilisation, worst.score, worst.where)
        self.details += part.details
        self.envelopes += part.envelopes
        self.keep_headroom(part.headroom)
        if part.sampled is not None:
            self.keep_sampled(part.sampled)
        if part.closer is not None:
            self.keep_closer(part.closer)

    def keep_sampled(self, sampled: Sampled) -> None:
        """Add what was sampled of one more matrix."""
        self.sampled = sampled if self.sampled is None else self.sampled.joined(sampled)

    def keep_closer(self, closer: Closer) -> None:
        """Add products that were judged more closely, and note how many there are."""
        if self.closer is not None:
            self.notes.remove(self.closer.words)
            closer = self.closer.joined(closer)
        self.closer = closer
        self.note(closer.words)

    @contextmanager
    def timed(self) -> Iterator[RungResult]:
        """Add the time that the block takes to `seconds`, and that of its stages to `stages`."""
        start, before = time.perf_counter(), stages.seconds()
        try:
            yield self
        finally:
            self.seconds += time.perf_counter() - start
            for name, spent in stages.since(before).items():
                self.stages[name] = self.stages.get(name, 0.0) + spent


class PartialResult(RungResult, kw_only=True):
    """What one part of a rung's work found, which begins with nothing recorded: see `RungResult.join`.

    Args:
        listed: failures of the model's own products that the rung lists already, as far as that is known: there is no
            room for as many.
        leading: the notes that stand before others.
    """

    listed: int = 0
    leading: list[str] = []

    most_causes: ClassVar[int] = sys.maxsize

    def room(self, rank: int = OWN) -> int:
        """How many more failures may be listed: those of a known cause may be listed before, and take no room."""
        return max(0, MAX_FAILURES - self.listed - sum(not f.cause and f.rank <= rank for f in self.failures))

    def _make_room(self) -> None:
        """Nothing: whoever joins it does."""

    def note(self, line: str, first: bool = False) -> None:
        """As `RungResult.note`."""
        if first and line not in self.notes:
            self.leading.insert(0, line)
        super().note(line, first)


def _add(sums: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    for key, n in more.items():
        sums[key] = sums.get(key, 0) + n


class WaiverUse(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a waiver in a run or an audit.

    Args:
        what: what it matches, in words.
        reason: why the mismatch is known and accepted.
        until: its last day, ISO 8601.
        state: "applied"; "expired": its last day has passed, so it counts no longer; "unused": it matched nothing.
        failures: how many failures it covers, or would cover if it had not expired.
    """

    what: str
    reason: str
    until: str
    state: WaiverState
    failures: int

    @property
    def words(self) -> str:
        """In a line."""
        n = f"{self.failures:,} failure{'' if self.failures == 1 else 's'}"
        told = {
            "applied": f"{n}, until {self.until}: {self.reason}",
            "expired": f"expired on {self.until}, covers nothing ({n} would match): {self.reason}",
            "unused": f"matched nothing (until {self.until}: {self.reason})",
        }
        return f"{self.what}: {told[self.state]}"


# ---- what the quantization costs -------------------------------------------------------------------------------------


class GemmCost(msgspec.Struct, frozen=True, kw_only=True):
    """How far the quantization of one matrix moves its GEMM, on the activations X of the run.

    Args:
        tensor, matrix: the weights' name, and which of its matrices (experts) this is, where it holds several.
        layer: as the file names it, such as "blk.0"; "" outside of layers.
        kind: the name without the layer, such as "attn_q".
        type, source_type: of the weights, and of the source's.
        m, n, k: tokens, rows, columns.
        error: ‖X·W_qᵀ − X·W_fᵀ‖ / ‖X·W_fᵀ‖, Frobenius norms, with the weights W_q and the source's W_f in float32.
    """

    tensor: str
    matrix: int | None
    layer: str
    kind: str
    type: str
    source_type: str
    m: int
    n: int
    k: int
    error: float


class TextCost(msgspec.Struct, frozen=True, kw_only=True):
    """How far the model's predictions on a text are from its source's, by the definitions of `llama-perplexity`.

    Args:
        text, sha256: the text's name, and the digest of its UTF-8.
        tokens: of the whole text.
        chunk, chunks: tokens of a chunk, and how many chunks were evaluated; the rest of the text was left out.
        scored: how many predictions were compared: those in the second half of each chunk.
        perplexity, source_perplexity: of the model, and of its source.
        kl_mean, kl_max: Kullback-Leibler divergence of the model's probabilities from the source's, in nats.
        kl_percentiles: percentile, such as "99%" → divergence.
        top1: share of the predictions in which both have the same most probable token.
    """

    text: str
    sha256: str
    tokens: int
    chunk: int
    chunks: int
    scored: int
    perplexity: float
    source_perplexity: float
    kl_mean: float
    kl_max: float
    kl_percentiles: dict[str, float]
    top1: float


class CostGroup(NamedTuple):
    """Several GEMMs: what they have in common, their weights' types, mean and largest error, and whose that is."""

    name: str
    types: str
    gemms: int
    mean: float
    worst: float
    worst_tensor: str


class QuantizationCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a quantization costs against the model that it was made from. No part of any verdict.

    Args:
        source: the file of that model.
        gemms: of the run's prompt, in the graph's order.
        text: the comparison of predictions; None where there is none, and `left` says why.
        left: what could not be measured, and why.
        seconds: how long the measurement took.
    """

    source: FileInfo
    gemms: tuple[GemmCost, ...] = ()
    text: TextCost | None = None
    left: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0

    @property
    def by_layer(self) -> list[CostGroup]:
        """The GEMMs of each layer, in the graph's order; those outside of layers last."""
        names = sorted(dict.fromkeys(g.layer for g in self.gemms), key=lambda name: not name)
        return [self._group(name or "other", [g for g in self.gemms if g.layer == name]) for name in names]

    @property
    def by_kind(self) -> list[CostGroup]:
        """The GEMMs of each kind of tensor, in the graph's order."""
        names = dict.fromkeys(g.kind for g in self.gemms)
        return [self._group(name, [g for g in self.gemms if g.kind == name]) for name in names]

    @staticmethod
    def _group(name: str, found: list[GemmCost]) -> CostGroup:
        worst = max(found, key=lambda g: g.error)
        types = ", ".join(dict.fromkeys(g.type for g in found))
        mean = math.fsum(g.error for g in found) / len(found)
        return CostGroup(name, types, len(found), mean, worst.error, worst.tensor)


class Report(Shown, msgspec.Struct, kw_only=True):
    """What a run found.

    `assert report` fails unless everything is verified; `repr` is one line, `str` the report as at the terminal, and a
    notebook shows a summary. The records that a rung finds one by one (`Failure`, `GemmRecord` …) are frozen. A report
    and its rungs are not, since they grow while a run goes on; nothing changes them after `verify` has returned, and
    `to_dict` gives a copy.

    Args:
        environment: everything that could matter to repeat it; the digests of the file are there at the end of the run.
        rungs: the rungs that were climbed, in order.
        command: the command line that repeats the run.
        seconds: of the whole run.
        changed: where the file is no longer the one whose digest the environment holds, how that is known; else None.
        costs: what the quantization costs, where the run was given the model's source; no part of the verdict.
        waivers: what became of the waivers that are about this model and kernel.
        ended_by: what ended the run before its end.
        not_climbed: rungs that were asked for and not begun, because the run was ended before.
        drawn: what was multiplied, where that is no model's: "verified" is then said of these data alone.
    """

    environment: Environment
    rungs: list[RungResult] = []
    command: str = ""
    seconds: float = 0.0
    changed: str | None = None
    costs: QuantizationCosts | None = None
    waivers: list[WaiverUse] = []
    ended_by: EndedBy = ""
    not_climbed: tuple[str, ...] = ()
    drawn: DrawnData | None = None

    @property
    def exit_code(self) -> int:
        """3 where the file was changed, so that nothing that was found need be true of it; else 1 for any mismatch;
        else 130 where Ctrl-C ended the run; else 3 where SIGTERM or SIGHUP did, or a rung was broken off; else 5 where
        something could not be verified."""
        if self.changed:
            return EXIT_ENVIRONMENT
        verdicts = [r.verdict for r in self.rungs]
        if "failed" in verdicts:
            return EXIT_MISMATCH
        if self.ended_by in EXIT_INTERRUPTED:
            return EXIT_INTERRUPTED[self.ended_by]
        if any(r.fault for r in self.rungs):
            return EXIT_ENVIRONMENT
        whole = not self.ended_by and not self.not_climbed
        return EXIT_VERIFIED if whole and verdicts and {*verdicts} <= {"passed", "waived"} else EXIT_UNVERIFIED

    @property
    def fault(self) -> str | None:
        """What broke off the whole run, in a line; what broke off one rung stands in its own `fault`."""
        return f"a file was changed while it was verified: {self.changed}" if self.changed else None

    @property
    def unfinished(self) -> str | None:
        """What ended the run before its end, what it left, and which rungs were not begun, in a line; else None."""
        if not self.ended_by:
            return None
        why = f"interrupted by {self.ended_by}"
        if self.ended_by == "first failure":
            why = "the first failure ended the run (-x)"
        elif self.ended_by == "budget":
            why = self._spent
        return f"{why}; rungs that were not begun: {', '.join(self.not_climbed) or 'none'}"

    @property
    def _spent(self) -> str:
        """That the budget was spent, and how much each rung left for that reason."""
        words = spent_words(self.environment.options.budget)
        counts = {rung.name: sum(left.why == words for left in rung.unverified) for rung in self.rungs}
        left = ", ".join(f"{n:,} in the {name} rung" for name, n in counts.items() if n)
        return f"{words}; it left unverified: {left}" if left else words

    @property
    def verdict(self) -> ReportVerdict:
        """The exit code in words."""
        words: dict[int, ReportVerdict] = {
            EXIT_VERIFIED: "verified",
            EXIT_MISMATCH: "mismatch",
            EXIT_ENVIRONMENT: "broken off",
            EXIT_UNVERIFIED: "not everything verified",
        }
        if not self.changed and self.exit_code != EXIT_MISMATCH and self.ended_by in EXIT_INTERRUPTED:
            return "interrupted"
        if self.drawn is not None and not self.exit_code:
            return "verified on drawn data"
        return "waived" if not self.exit_code and self.n_waived else words[self.exit_code]

    @property
    def words(self) -> str:
        """The verdict as reports say it: only a whole run that passed without a waiver, on a model, is "verified"."""
        if self.verdict == "waived":
            return f"verified with {self.n_waived:,} waived failure{'' if self.n_waived == 1 else 's'}{self.scope}"
        return f"{self.verdict}{self.scope}" if not self.exit_code else self.verdict

    @property
    def headline(self) -> str:
        """`words` as a report begins with them: "VERIFIED (brief)"."""
        words, scope = self.words, "" if self.exit_code else self.scope
        return words.removesuffix(scope).upper() + scope

    @property
    def scope(self) -> str:
        """What was verified, where that is less than a whole run, as it follows "verified": ": file bytes only",
        " (brief)"; else ""."""
        scopes = [*(s.scope for s in self._skipped), self._sampled]
        if self.drawn is not None and not self.drawn.compared:
            scopes.insert(0, "not compared with llama.cpp")
        if call := self.environment.options.only_call:
            return f": one call only ({call.partition(',')[0]})" + scope_of((), scopes)
        return scope_of(self.checks, scopes, () if self.drawn is None else (BYTES, "tokens"))

    @property
    def _sampled(self) -> str:
        """What the headline says of large matrices of which a sample was judged; "" where every output was."""
        sampled = [rung.sampled for rung in self.rungs if rung.sampled is not None]
        of_outputs = [part for part in sampled if part.missed is not None]
        if not of_outputs:
            return "sampled: some blocks" if sampled else ""
        size = 2 * max(part.smallest or 0.0 for part in of_outputs)
        missed = max(part.missed or 0.0 for part in of_outputs)
        words = f"sampled: misses errors above {size:.1g} times the outputs' size"
        return f"{words} with a probability of at most {missed:.1g}"

    @property
    def checks(self) -> list[Check]:
        """What became of every class of checks, in the order of `checks.CHECKS`."""
        alone = sum(rung.sampled.alone for rung in self.rungs if rung.sampled is not None)
        done: dict[str, int] = {"tensors": len(self.rungs), "sandbox": 1, "every-output": alone}
        for rung in self.rungs:
            whole = rung.substance if self.drawn is None or rung.name != BYTES else ()
            done[rung.name] = sum(rung.checked.get(kind, 0) for kind in whole if kind != ALONE)
            for c in CHECKS:
                if not c.is_rung and any(kind in rung.checked for kind in c.counts):
                    done[c.id] = done.get(c.id, 0) + sum(rung.checked.get(kind, 0) for kind in c.counts)
            for name, n in rung.done.items():
                done[name] = done.get(name, 0) + n
            if any(not worst.of_kernel for worst in rung.worst.values()):
                done["llama"] = done.get("llama", 0) + 1
        ran = {rung.name: rung.question for rung in self.rungs}
        found = account(self.environment.kernel.computes, done, self._skipped, ran)
        if self.drawn is None:
            return found
        return [msgspec.structs.replace(c, title="products of random data") if c.id == "layers" else c for c in found]

    @property
    def _skipped(self) -> list[Skipped]:
        """What was not done of a whole run, by the options, by the environment and in the rungs."""
        options, sandbox = self.environment.options, self.environment.sandbox
        found = [*options.skips, *(s for rung in self.rungs for s in rung.skipped)]
        if sandbox.missing and options.sandbox != "none":
            found.append(Skipped("sandbox", f"they may {', '.join(sandbox.missing)}"))
        found += [Skipped("grids", why) for why in self.environment.kernel.code if why.startswith(NOT_COMPILED)]
        found += [
            Skipped("every-output", f"{rung.sampled.words} (--thorough judges every one)")
            for rung in self.rungs if rung.sampled is not None
        ]  # fmt: skip
        tokens = self.rung("tokens")
        if tokens is not None and options.n_predict < DEFAULT_N_PREDICT:
            of = f"{options.n_predict} of {DEFAULT_N_PREDICT} tokens"
            found.append(Skipped("tokens", f"{of} were predicted (-n)", of))
        if options.only_call:
            whole = ("tensors", "sandbox")
            found += [Skipped(c.id, "one call was made (--only-call)") for c in CHECKS if c.id not in whole]
        if self.drawn is not None:
            found += [Skipped(name, "there is no model") for name in (BYTES, "tokens")]
            found += [] if self.drawn.compared else [Skipped("llama", "llama.cpp was not asked (--reference none)")]
        return found + [Skipped(name, "the run ended before") for name in self.not_climbed if name in BY_ID]

    @property
    def skipped(self) -> list[Check]:
        """The classes of checks that were skipped or done in part only."""
        return [check for check in self.checks if check.skipped]

    @property
    def limits(self) -> list[str]:
        """What is verified up to some size only, why, and how to state or lift that limit."""
        return list(dict.fromkeys(s.why for s in self._skipped if s.check == "grids" and s.scope))

    @property
    def shortened(self) -> list[str]:
        """What the user chose not to have checked, each in words."""
        return list(dict.fromkeys(f"{BY_ID[s.check].title}: {s.why}" for s in self._skipped if s.scope))

    @property
    def kernel_ran(self) -> bool:
        """Whether anything that the kernel under test computed was judged, or is wrong."""
        call = self.environment.options.only_call.partition(",")[0]
        if call:
            return call != "reference"
        of_kernel = [rung for rung in self.rungs if rung.name not in BY_ID or BY_ID[rung.name].of_kernel]
        return any(any(rung.checked.values()) or rung.n_failures for rung in of_kernel)

    @property
    def n_waived(self) -> int:
        """How many failures a waiver covers."""
        return sum(rung.n_waived for rung in self.rungs)

    def repeat_of(self, failure: Failure | None = None) -> str:
        """The command line that repeats a failure alone: its call where that is known, else its tensor and its rung.

        Args:
            failure: one of `failures`; None for the first of them. Where there is none: the whole run.
        """
        rung, failure = next(((r, f) for r, f in self.failures if failure is None or f is failure), (None, None))
        if failure is None or rung is None:
            return self.command
        return repeat(self.command, rung.name, failure.tensor, failure.call.id if failure.call else "")

    def rung(self, name: str) -> RungResult | None:
        """The rung of this name, where it was climbed."""
        return next((r for r in self.rungs if r.name == name), None)

    @property
    def culprits(self) -> dict[Culprit, int]:
        """Who is at fault → for how much that is wrong or could not be verified, those of failures first; empty where
        everything is verified or waived. Where the file was changed, nothing that was found tells who is."""
        if self.changed:
            return {"environment": 1}
        found: dict[Culprit, int] = {}
        for rung in self.rungs:
            if rung.verdict == "waived":
                continue
            for culprit, n in rung.blamed.items():
                found[culprit] = found.get(culprit, 0) + n
        for rung in self.rungs:
            left: list[Culprit] = [u.culprit for u in rung.unverified]
            interrupted = rung.fault is not None and rung.fault_culprit == "coverage"  # a signal is nobody's fault
            if rung.fault is not None and not interrupted:
                left.append(rung.fault_culprit)
            if rung.verdict == "unverified" and not left and not (interrupted and self.ended_by):
                left = ["coverage"]
            for culprit in left:
                found[culprit] = found.get(culprit, 0) + 1
        if not found and self.ended_by:  # before anything was wrong
            found["coverage"] = max(1, len(self.not_climbed))
        return found

    @property
    def at_fault(self) -> str:
        """`culprits` in words."""
        return ", ".join(f"{CULPRITS[culprit]} ({n:,})" for culprit, n in self.culprits.items())

    @property
    def failures(self) -> list[tuple[RungResult, Failure]]:
        """Every failure that a rung recorded, with its rung, those of the call first that `diagnosed` explains first,
        then those of the model's own products; `n_failures` counts those that were not recorded, too."""
        leading = next(iter(self.diagnosed), None)

        def weight(pair: tuple[RungResult, Failure]) -> tuple[bool, int]:
            rung, failure = pair
            return not (leading and rung is leading[0] and leading[1].is_of(failure)), failure.rank

        return sorted(((rung, failure) for rung in self.rungs for failure in rung.failures), key=weight)

    @property
    def diagnosed(self) -> list[tuple[RungResult, LocatedDiagnosis]]:
        """Of each type of weights the most important diagnosis, with its rung, the most important first."""
        found: dict[str, tuple[RungResult, LocatedDiagnosis]] = {}
        pairs = [(rung, diagnosis) for rung in self.rungs for diagnosis in rung.diagnoses]
        # one with a map says more than the same without
        for rung, diagnosis in sorted(pairs, key=lambda p: (p[1].weight, p[0].heat_map is None)):
            found.setdefault(diagnosis.type, (rung, diagnosis))
        return list(found.values())

    @property
    def n_failures(self) -> int:
        """How many outputs, blocks or tokens are wrong."""
        return sum(rung.n_failures for rung in self.rungs)

    @property
    def tensor_types(self) -> dict[str, str]:
        """Tensor → type, of the tensors that a rung looked at."""
        records = (record for rung in self.rungs for record in rung.details)
        return {
            r.tensor: r.type for r in records if isinstance(r, TensorBytes | TensorBlocks | TensorValues | GemmRecord)
        }


# ---- as JSON ---------------------------------------------------------------------------------------------------------

#: The version of the JSON schema that a report is written in, and read back from.
SCHEMA_VERSION = 4
