"""The verifier's side of a foreign kernel, which runs in a separate process.

Any misbehaviour there becomes a KernelFault of one line, which rungs record. Nothing that the process sends is trusted:
its writes are checked in memory of this process, and outputs are judged like any other. If the kernel has an oracle by
its author, the oracle runs in a second process.
"""

from __future__ import annotations

import copy
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ...formats.block import QK, BlockFormat
from ...formats.element import ElementFormat
from ...formats.tensor_types import WeightFormat
from ...hosts.base import Host, Written
from ...hosts.choice import HOSTS
from ...hosts.schedule import Schedule
from ...processes.sandbox import Sandbox
from ...results.coverage import Execution, one_sided
from ...results.environment import HostInfo, OpenedFiles
from ...semantics.definition import OWN, Semantics, by_oracle
from ...semantics.drawn import keys_of_slots
from ...semantics.exact import product
from ...semantics.order import ASCENDING, Order
from ...semantics.sums import Product
from ...support.errors import EnvironmentFault, KernelFault, KernelFinding, UsageError
from ...support.text import printable
from ..comparisons import CodeNumber, Compared, Observation
from ..domain import Domain, Extent
from ..experts import Experts, answers_of, embedded, experts_of, within, worst_of, worst_of_slots
from ..interface import Kernel, Weights
from ..launches import Launched, Lies, Needs, SparseCall, SparseProduct, needed
from ..operands import fitting, whole_blocks, whole_rows
from ..routing import Routing
from ..shipped import element_kernel
from .addresses import Addresses, Answered, Call, Unaligned, all_correct
from .api import TASKS
from .beside import NOTHING, Beside, Fused, epilogue_of, experts_taken, fused_of_slots, routed_beside
from .calls import Operands
from .child import MOST_UNSET
from .compared import Comparisons
from .conversation import Conversation
from .cuda import CudaKernels
from .declaration import Declaration, declaration_of_table
from .declared import CallDeclaration
from .executions import Executions
from .faults import frames_of
from .judge import widened
from .names import TIME_LIMIT
from .operands import Wall, dtype_of, leads_of
from .oracle import ForeignOracle
from .products import ORDINARY, Arrays, Given, Products, Runs, ThreadBlocks
from .reported import Reports
from .source_numbers import numbers_in
from .sources import Source

Bytes = npt.NDArray[np.uint8]
#: (tokens, rows) → their exact product.
Exact = Callable[[npt.NDArray[np.intp], npt.NDArray[np.intp]], Product]

#: Most multiply-adds of a call that is repeated with a checked build.
_MOST_LOCATED = 1 << 23
#: Threads of the runs of a call after the first, about, on an emulated host.
_MOST_AGAIN = 1 << 17
#: Bytes of the page of zeros that repeats in zeroed scratch memory.
_PAGE = 4096


class ForeignKernel(Kernel):
    """A foreign kernel, in a separate process.

    Args:
        source: its files, and how its process is started.
        host: the host of the shipped kernels that multiply matrices of types without quantization.
        time_limit: seconds for two runs of a call, and for loading a matrix.
        verbose: whether to print the kernel's output to standard error.
        launches: the declaration of its launches; None for a kernel in Python, whose process sends its declaration.
        symbol: the function of launches without one.
        compiled: the compiler of a kernel in CUDA C++.

    Raises UsageError if there is no such kernel or its declaration is incomplete; EnvironmentFault.
    """

    quantizes = False

    def __init__(
        self,
        source: Source,
        host: Host,
        time_limit: float = TIME_LIMIT,
        verbose: bool = False,
        launches: CallDeclaration | None = None,
        symbol: str = "",
        compiled: CudaKernels | None = None,
    ) -> None:
        self.host = host
        self._source, self._time_limit, self._verbose = source, time_limit, verbose
        #: The declaration of its launches; None for a Python function.
        self.declares, self._symbol, self._compiled = launches, symbol, compiled
        #: Whether a source in CUDA C++ adds floats by atomic operations, whose order is not defined. The answer of its
        #: process would not be trusted.
        self._may_add_floats = compiled is not None and compiled.source.adds_floats
        self._schedule: Schedule | None = None
        #: The addresses of operands, and whether all begin at no multiple of 16 in each call.
        self.addresses, self._unaligned = Addresses(), False
        #: Whether fused operations get neutral operands, with which the kernel computes the product alone.
        self._neutral = False
        self._oracle: ForeignOracle | None = None
        self._conversation = source.converse("the kernel", time_limit, verbose)
        #: Whether the line of a write outside of an operand was searched.
        self._sought_writes = False
        #: The operands that its process holds.
        self.loaded, self._blocks = Products(self._conversation), ThreadBlocks(self._conversation)
        self._reports = Reports.in_code(source, time_limit, verbose)
        try:
            said = self._conversation.begin()
            self.declaration = (
                _declared(self._conversation, said, source.name) if self.declares is None else self.declares.of
            )
            if self.declaration.semantics == OWN:
                self._oracle = ForeignOracle(source, self.declaration.definition, time_limit, verbose)
            #: Whether its process derives packed weights, which have no guards.
            self._packs = said.get("packs") is True
            #: Whether a repacking has an inverse.
            self.unpacks = said.get("unpacks") is True if self.declares is None else self.declares.unpack is not None
            task = self.declaration.computes in TASKS
            self._executions = Executions(compiled, self.declares is None)
            self._comparisons = Comparisons.in_code(compiled)
            self._observe(self._conversation)
            self._executions.begun(self._conversation)
            #: Builds the operands of its calls.
            self.operands = Operands(self.declaration, None if task else self.definition)
            self._epilogue, self.takes_experts = epilogue_of(self.declaration), experts_taken(self.declaration)
        except KernelFault as error:
            self.close()
            raise UsageError(f"kernel {source.name} cannot be started: {error}") from None
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def sandbox(self) -> Sandbox:
        return self._source.sandbox

    @property
    def hints(self) -> tuple[str, ...]:
        return () if self._compiled is None else self._compiled.source.hints

    def check_fault(self) -> str | None:
        if self._source.on_host and not HOSTS[self.host.name].emulated and self.sandbox.kind != "none":
            return (
                "compute-sanitizer needs sockets, which the sandbox blocks; if you trust the kernel, add --sandbox none"
            )
        return super().check_fault()

    @property
    def semantics(self) -> str:
        return self.declaration.semantics or self.definition.name

    @cached_property
    def definition(self) -> Semantics:
        declared = self.declaration.plain_definition if self._neutral else self.declaration.definition
        return declared if self._oracle is None else by_oracle(self._oracle, declared)

    def neutral(self) -> ForeignKernel | None:
        if self._epilogue is None or self._neutral:
            return self
        if not self._epilogue.has_neutral:
            return None
        plain = copy.copy(self)  # shares the process
        plain._neutral = True
        plain.__dict__.pop("definition", None)
        return plain

    @property
    def beside_definition(self) -> tuple[str, ...]:
        return self.declaration.beside

    @property
    def judged_by(self) -> str | None:
        definition = self.definition
        rounded = "" if definition.plain else definition.rounded_words
        if definition.inside is not None:
            dtype = definition.encoding.dtype
            return f"{self.semantics} of the {dtype} activations that it takes, quantized by IEEE arithmetic{rounded}"
        if self._oracle is None:
            return f"{self.semantics}{rounded}" if rounded else None
        own = ", ".join(self._oracle.gives) or "nothing: the exact product"
        return f"an oracle of its author (its own: {own})"

    @property
    def code(self) -> tuple[str, ...]:
        if self._compiled is None:
            return self._source.code
        found: dict[str, list[str]] = {}
        for fmt, compilation in self._compiled.compilations.items():
            found.setdefault(compilation.words, []).append(fmt)
        run = [words if len(found) == 1 else f"{', '.join(of)}: {words}" for words, of in found.items()]
        also = dict.fromkeys(c.accepted for c in self._compiled.compilations.values() if c.accepted)
        return (*run, *also)

    def executed(self) -> Execution:
        self._executions.look(self._conversation)
        return self._executions.execution({} if self._observed is None else self._observed.noted.outcomes)

    @property
    def texts(self) -> Mapping[str, str]:
        if self._compiled is None:  # the files that a kernel in Python has imported
            self._executions.look(self._conversation)
        return self._executions.texts()

    @property
    def impossible(self) -> Mapping[str, Mapping[int, str]]:
        return {} if self._compiled is None else self._compiled.source.impossible

    @property
    def opened(self) -> OpenedFiles:
        opened = self._source.opened
        self._conversation.look()
        if self._compiled is not None:
            opened.take(sorted(self._compiled.opened), self._compiled.opened)
        return OpenedFiles(files=dict(sorted(opened.files.items())), packages=dict(sorted(opened.packages.items())))

    @property
    def domain(self) -> Domain:
        return self.declaration.domain

    @property
    def order(self) -> Order | None:
        return ASCENDING if self.declaration.ordered else None

    def runs_on(self) -> HostInfo:
        if self._source.on_host:
            copies = self._compiled is not None and not self._compiled.host.runs_on_mapped
            return msgspec.structs.replace(self.host.info(), own_process=True, copies=copies)
        python = f"python {platform.python_version()}"
        return HostInfo(name="", device=python, own_process=True, chosen="by the kernel")

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> Kernel:
        return self if isinstance(fmt, BlockFormat) else element_kernel(fmt, self.host)

    def covers(self, fmt: WeightFormat) -> bool:
        return isinstance(fmt, ElementFormat) or fmt.name in self.declaration.formats

    def under(self, schedule: Schedule) -> ForeignKernel | None:
        if not self._source.on_host or not self.host.offers(schedule):
            return None
        if schedule.checked and self.check_fault() is not None:
            return None
        scheduled = copy.copy(self)  # shares the process
        scheduled._schedule = schedule
        return scheduled

    def alignments(self, fmt: WeightFormat) -> Mapping[str, int]:
        return self.addresses.called.get(fmt.name, {})

    @property
    def address_limits(self) -> Mapping[str, str]:
        return {needed.scope: needed.words for needed in self.addresses.limits}

    def try_every_address(self) -> None:
        self.addresses.every = True

    def unaligned(self) -> ForeignKernel:
        unaligned = copy.copy(self)  # shares the process
        unaligned._unaligned = True
        return unaligned

    def launches(self, fmt: WeightFormat, m: int, n: int, k: int) -> tuple[Launched, ...] | None:
        return None if self.declares is None else self.declares.launched(self.operands.names(fmt, m, n, k))

    def only_launch(self, fmt: WeightFormat, m: int, n: int, k: int) -> Launched | str:
        launched = self.launches(fmt, m, n, k)
        if launched is None:
            return super().only_launch(fmt, m, n, k)
        if self.declaration.computes != "gemm":
            return "the experts of its tokens are lists of any length"
        return launched[-1] if self.host.runs_alone else f"the {self.host.name} host cannot run single thread blocks"

    def earlier(self, fmt: WeightFormat, m: int, n: int, k: int) -> tuple[Launched, ...]:
        return (self.launches(fmt, m, n, k) or ())[:-1]

    def lies(self, fmt: WeightFormat, m: int, n: int, k: int) -> Mapping[str, Lies]:
        return self.operands.lies(fmt, (m, n, k))

    def alone(self, product: SparseProduct, number: int) -> Written:
        call, names = self._sparse(product)
        fmt, shape, correct = product.fmt, (product.m, product.n, product.k), product.correct
        matrices = {} if correct is None else self.operands.matrices(fmt, shape)
        operands = [operand for operand, _, _ in matrices.values()]
        types = {operand.name: operand.least for operand in operands if operand.least is not None}
        launches, output = self._called_blocks(fmt.name, names, number, product.needs), self.declaration.output

        def made(leads: Mapping[str, int] | None = None) -> Written:
            written = self._blocks.alone(call, launches, leads)
            return Written(written.at, widened(written.words.view(dtype_of(output)), output).view(np.uint32))

        if correct is None or not types or not number % 2:  # of adjacent blocks, one has its operands at pages
            return made()

        def make(unaligned: Unaligned, _: bool) -> Answered[Written]:
            some = list(unaligned())
            each = [made(leads_of(operands, least, number)) for least in some or [{}]]
            wrong = next((one for one in each if not correct(one)), None)
            if wrong is None or not some:
                return each[:1], {}
            usual = made()
            return [usual] if usual.equals(wrong) else [wrong, usual], {}

        answers, _ = self.addresses.made(
            Call(fmt.name, types, shape, False), make, lambda answers: [*map(correct, answers)], self.restart
        )
        return answers[0]

    @property
    def compares(self) -> Observation | None:  # type: ignore[override]
        if self.declaration.computes != "gemm":
            return None
        if self._reports is not None:
            return "calls"
        if self._comparisons is not None:
            return "thread blocks"
        return None if self.declares is None else "launches"

    @property
    def numbers(self) -> Sequence[CodeNumber]:  # type: ignore[override]
        if self._reports is not None:
            return self._reports.numbers
        return () if self._compiled is None else numbers_in(self.texts)

    @property
    def observed_cost(self) -> int:  # type: ignore[override]
        return 0 if self._reports is None else self._reports.cost

    def compared_in_launches(self, fmt: WeightFormat, m: int, n: int, k: int) -> Compared:
        return {} if self.declares is None else self.declares.compared(self.operands.names(fmt, m, n, k))

    def compared(self, product: SparseProduct, numbers: Sequence[int]) -> Compared | None:
        if self._reports is not None:
            return self._reports.of(product, self.operands)
        if self._comparisons is None:
            return None
        call, names = self._sparse(product)
        launches = self._of_blocks(product.fmt.name, names, numbers, product.needs)
        return self._comparisons.of(self._blocks, product.fmt.name, call, launches)

    @property
    def one_sided(self) -> int:  # type: ignore[override]
        return 0 if self._observed is None else one_sided(self._observed.noted.outcomes)

    @property
    def _observed(self) -> Comparisons | Reports | None:
        return self._comparisons if self._reports is None else self._reports

    def unseen(self, fmt: WeightFormat) -> str:
        return "" if self._comparisons is None else self._comparisons.unseen(fmt.name)

    def _sparse(self, product: SparseProduct) -> tuple[SparseCall, Mapping[str, int]]:
        """Return a product as a call, and the values of its names."""
        names = self.operands.names(product.fmt, product.m, product.n, product.k)
        own = self.operands.own(names)
        # Zeroed scratch memory is sparse: a page of zeros that repeats.
        contents = {
            name: content[:_PAGE] if of.role == "scratch" else content
            for name, (of, content) in own.items()
            if content is not None
        }
        call = SparseCall(
            {**product.contents, **contents},
            {**product.sizes, **{name: of.nbytes for name, (of, _) in own.items()}},
            product,
            frozenset(name for name, (of, _) in own.items() if of.role == "scratch"),
            product.zeros,
            product.unit,
        )
        return call, names

    def together(self, product: SparseProduct) -> npt.NDArray[np.float32]:
        if not product.fused:
            return super().together(product)
        shape = product.m, product.n, product.k
        tokens, rows = range(product.m), range(product.n)
        weights = self.upload(product.fmt, product.rows(rows))
        self.loaded.holds(weights, self.walls)
        self._load(weights, weights.buffer, product.n, product.k)
        beside = Beside(product.beside(tokens, rows))
        made = self._made(product.fmt, product.tokens(tokens), shape, beside)
        return np.asarray(made[0], np.float32)

    def tail(self, fmt: WeightFormat, m: int, n: int, k: int, name: str) -> int:
        return self.operands.tail(name, self.operands.names(fmt, m, n, k))

    def alone_in(
        self, call: SparseCall, fmt: str, names: Mapping[str, int], number: int, needs: Sequence[Needs] = ()
    ) -> Written:
        """Return the writes of thread block `number` of a call's last launch. Raises KernelFault, EnvironmentFault.

        Args:
            fmt, names: as in `called`.
            needs: the thread blocks of each earlier launch that it depends on.
        """
        return self._blocks.alone(call, self._called_blocks(fmt, names, number, needs))

    def _called_blocks(
        self, fmt: str, names: Mapping[str, int], number: int, needs: Sequence[Needs]
    ) -> list[dict[str, Any]]:
        """Return the launches of a call of one thread block, whose execution is noted."""
        launches = self._of_blocks(fmt, names, [number], needs)
        self._executions.call(fmt, launches[-1:])
        return launches

    def _of_blocks(
        self, fmt: str, names: Mapping[str, int], numbers: Sequence[int], needs: Sequence[Needs]
    ) -> list[dict[str, Any]]:
        """Return the launches of a call, with the numbers of thread blocks of the last one and of those it needs."""
        assert self.declares is not None
        *before, launch = self.declares.messages(fmt, names, self._symbol)
        x, y, _ = launch["grid"]
        for earlier, of in zip(before, needs, strict=True):
            of_each = (needed(earlier["grid"], of, (at % x, at // x % y, at // (x * y))) for at in numbers)
            earlier["numbers"] = sorted(set().union(*of_each))
        return [*before, {**launch, "numbers": list(numbers)}]

    def quantize(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Encode activations with this project's encoder: the kernel gets the activations that it declares."""
        whole_blocks(x, self.definition.activations)
        return self.definition.bytes_of(x)

    def upload(self, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        if not self.covers(fmt):
            raise UsageError(f"kernel {self.name} does not cover type {fmt.name}")
        whole_rows(rows, fmt)
        return Weights(fmt, len(rows), rows.shape[1] // fmt.block_bytes * fmt.block_size, rows)

    def product(self, weights: Weights, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        fitting(x, weights, self.definition.activations, quantized=False)
        return self.gemm(weights, self.quantize(x))

    def gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        try:
            return self._located(len(x) * weights.n * weights.k, lambda kernel: kernel._gemm(weights, x))
        except KernelFinding as error:
            error.trace = error.trace or frames_of(error.lines, self.texts)
            raise

    def _located(self, work: int, make: Callable[[ForeignKernel], npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        """Make a call; if it accesses memory outside its operands, repeat it with a checked build to find the line.

        Only calls of moderate size are repeated; of those that overwrote guards, the first. Raises as the call does.
        """
        try:
            return make(self)
        except KernelFinding as error:
            if error.kind != "outside" or error.lines or self._schedule is not None or work > _MOST_LOCATED:
                raise
            crashed = "outside its buffers" in error.words  # no guard was written
            if not crashed and self._sought_writes:
                raise
            self._sought_writes = True
            checked = self.under(Schedule(checked=True))
            if checked is not None:
                try:
                    make(checked)
                except KernelFinding as found:
                    if found.lines and crashed:
                        raise found from None
                    if found.lines and found.kind == "outside":  # else the build stopped at another fault
                        said = "the first access outside, in a checked build"
                        error.trace = frames_of(found.lines[:1], self.texts, said)
                except (KernelFault, EnvironmentFault):
                    pass  # less informative than the first finding
            raise error from None

    def _gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Multiply within the kernel's domain, with padding that does not change the results.

        Tokens are given in calls of an allowed number, the last ones with repeated tokens. Weights of too few rows get
        repeated rows; weights of too few columns get repeated blocks, which are multiplied by activations of zero.
        """
        unit = self.operands.activations
        if unit.values > 1 and weights.k % QK:
            raise UsageError(f"a row of {weights.k} activations is not a whole number of blocks of {QK}")
        expected = -(-weights.k // unit.values) * unit.nbytes
        if x.ndim != 2 or x.shape[1] != expected:
            took = f"weights of {weights.k} columns take {expected}"
            raise UsageError(f"{x.shape[-1]} bytes of activations a token, but {took}")
        n, k = self._called_with(weights)
        rows, width = weights.buffer, weights.buffer.shape[1] * k // max(1, weights.k)
        held = self.loaded.holds(weights, self.walls)
        if (n, k) != (weights.n, weights.k) and not (held and self.takes_experts is None):
            rows = np.take(np.tile(rows, (1, -(-k // weights.k)))[:, :width], np.arange(n) % len(rows), axis=0)
        experts = None if self.takes_experts is None else experts_of(rows, *self.takes_experts.usual())
        if not held:
            self._load(weights, rows if experts is None else experts.stacked(rows), n, k)
        fmt, y, at = weights.fmt, np.empty((len(x), weights.n), np.float32), 0
        fused = Fused.of(self._epilogue, fmt, weights.buffer, x, self.declaration.output, self._neutral)
        for wanted, given_tokens in self.domain.m.parts(len(x)) if len(x) else ((0, 0),):
            tokens = at + np.arange(given_tokens) % max(1, wanted)
            part = x[tokens]
            if k != weights.k:
                part = np.pad(part, ((0, 0), (0, k // unit.values * unit.nbytes - x.shape[1])))
            part, own = np.ascontiguousarray(part), x[at : at + wanted]

            def exact(of: npt.NDArray[np.intp], some: npt.NDArray[np.intp], own: Bytes = own) -> Product:
                return product(self.definition, fmt, weights.buffer[some], np.ascontiguousarray(own[of]), self.order)

            if experts is not None:
                made = self._embedded(weights, experts, (x, tokens), part, (n, k), fused)[None]
            else:
                beside = NOTHING if fused is None else fused.call(tokens, n, width)

                def correct(answers: Sequence[Arrays], wanted: int = wanted, exact: Exact = exact) -> list[bool]:
                    return within([answer["output"][:wanted, : weights.n] for answer in answers], exact)

                made = self._made(fmt, part, (len(part), n, k), beside, correct)
            y[at : at + wanted] = worst_of(answers_of(made, wanted, weights.n), exact)
            at += wanted
        return y

    def _load(self, weights: Weights, rows: npt.NDArray[np.uint8], n: int, k: int) -> None:
        """Have the process load weights uint8[E·N, row bytes]. Raises KernelFault."""
        experts = len(rows) // max(1, n)
        given = self.operands.weights(weights.fmt, np.ascontiguousarray(rows), k, max(1, experts))
        more = {} if self.takes_experts is None else {"experts": experts}
        asked = {"format": weights.fmt.name, "n": n, "k": k, **more}
        self.loaded.load(weights, self.walls, [given], asked, once=self._packs)

    def _embedded(
        self,
        weights: Weights,
        experts: Experts,
        product_of: tuple[npt.NDArray[np.uint8], npt.NDArray[np.intp]],
        x: npt.NDArray[np.uint8],
        shape: tuple[int, int],
        fused: Fused | None,
    ) -> npt.NDArray[np.float32]:
        """Make a plain product with weights that were loaded as experts.

        Args:
            product_of: all activations of the product, and the numbers of the tokens of the call.
            x: the activations of the call, padded to its columns.
            shape: [N, K] of the call.
            fused: the operands of the product's epilogue.

        Raises KernelFault.
        """
        assert self.takes_experts is not None
        fmt, (whole, tokens), (n, k) = weights.fmt, product_of, shape
        call = embedded(experts, x, self.takes_experts.usual()[1], self.takes_experts.own_activations)
        width = weights.buffer.shape[1] * k // max(1, weights.k)
        operands = None if fused is None else fused.routed(call, tokens, width)
        beside = routed_beside(call.routing, self.takes_experts, self._names, operands)
        made = self._made(fmt, call.activations(x), (len(x), n, k), beside)

        def expected(of: npt.NDArray[np.intp], some: npt.NDArray[np.intp]) -> Product:
            rows, own = weights.buffer[some % weights.n], np.ascontiguousarray(whole[tokens[of]])
            return product(self.definition, fmt, rows, own, self.order)

        return call.plain(made.reshape(len(made), len(x), call.routing.top_k, n), expected)

    def routed(
        self, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8], routing: Routing
    ) -> npt.NDArray[np.float32]:
        k = rows.shape[1] // fmt.block_bytes * fmt.block_size
        work = routing.ids.size * len(rows) // routing.experts * k
        return self._located(work, lambda kernel: kernel._routed(fmt, rows, x, routing))

    def _routed(
        self, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8], routing: Routing
    ) -> npt.NDArray[np.float32]:
        assert self.takes_experts is not None
        weights = Weights(fmt, len(rows) // routing.experts, rows.shape[1] // fmt.block_bytes * fmt.block_size, rows)
        self.loaded.holds(weights, self.walls)
        self._load(weights, rows, weights.n, weights.k)
        shape = len(routing.ids), weights.n, weights.k
        fused = fused_of_slots(self._epilogue, fmt, rows, x, routing, self.declaration.output, self._neutral)
        made = self._made(fmt, x, shape, routed_beside(routing, self.takes_experts, self._names, fused))

        def expected(expert: int, slots: npt.NDArray[np.intp], some: npt.NDArray[np.intp]) -> Product:
            own = np.ascontiguousarray(x[slots if len(x) != len(routing.ids) else slots // routing.top_k])
            keys, of_expert = keys_of_slots(own, slots), rows[expert * weights.n : (expert + 1) * weights.n]
            return product(self.definition, fmt, of_expert[some], own, self.order, keys=keys)

        y = worst_of_slots(made, routing, expected)
        return y.reshape(len(routing.ids), routing.top_k, weights.n)

    @property
    def _names(self) -> tuple[str, ...]:
        """The lists of a routing that its parameters name."""
        if self.declares is None:
            return () if self.takes_experts is None else self.takes_experts.lists
        return tuple(name for step in self.declares.steps for name in step.parameters if isinstance(name, str))

    def _made(
        self,
        fmt: WeightFormat,
        x: npt.NDArray[np.uint8],
        shape: tuple[int, int, int],
        beside: Beside,
        correct: Callable[[Sequence[Arrays]], list[bool]] = all_correct,
    ) -> npt.NDArray[np.float32]:
        """Make one call; return its results float32[T, M·slots, N], several if their bits may differ and do.

        Args:
            correct: see `called`.

        Raises KernelFault; EnvironmentFault under a schedule.
        """
        if self.declares is not None and not len(x):  # as engines do: CUDA refuses a launch without thread blocks
            return np.empty((1, 0, shape[1]), np.float32)

        names, operands = self.operands.names(fmt, *shape, beside), self.operands.of_call(fmt, x, shape, beside)
        more = {} if beside.routing is None else {"top_k": beside.slots}
        answers, _ = self.called(self.loaded, fmt.name, operands, names, more=more, correct=correct)
        return np.stack([answer["output"] for answer in answers])

    def called(
        self,
        products: Products,
        fmt: str,
        operands: list[Given],
        names: Mapping[str, int],
        unpacks: bool = False,
        more: Mapping[str, Any] | None = None,
        runs: Runs | None = None,
        correct: Callable[[Sequence[Arrays]], list[bool]] = all_correct,
    ) -> tuple[list[Arrays], dict[str, Any]]:
        """Make a call; return its outputs, once for each run whose bits may differ, and the process's last message.

        Some operands begin at no multiple of 16 in one run (`addresses`). If that is why it fails, later calls get what
        the operands need; this one is made with all of them aligned if no outputs were incorrect.

        Args:
            products: the operands that its process holds.
            fmt: the weights' type; "" without weights.
            operands: those that are not loaded.
            names: the values of the names in expressions.
            unpacks: whether the call unpacks packed weights.
            more: further fields of the message.
            runs: replaces the usual runs.
            correct: which outputs are correct, of several whose bits differ; where that is known.

        Raises KernelFault; EnvironmentFault under a schedule.
        """
        types = {
            given.operand.name: given.operand.least
            for given in (*products.inputs, *operands)
            if given.operand.least is not None
        }
        usual = self._runs if runs is None else runs

        def make(unaligned: Unaligned, again: bool) -> tuple[list[Arrays], dict[str, Any]]:
            of, walls = (unpacks, more or {}), usual.walls
            if again and len(walls) > 1:
                walls = walls[0], walls[-1]
            return self._made_at(products, fmt, operands, names, of, replace(usual, walls=walls, unaligned=unaligned))

        call = Call(fmt, types, (names["M"], names["N"], names["K"]), self._unaligned)
        return self.addresses.made(call, make, correct, products.restart)

    def _made_at(
        self,
        products: Products,
        fmt: str,
        operands: list[Given],
        names: Mapping[str, int],
        of: tuple[bool, Mapping[str, Any]],
        runs: Runs,
    ) -> tuple[list[Arrays], dict[str, Any]]:
        """Make a call by these runs: see `called`."""
        unpacks, more = of
        asked: dict[str, Any] = {"shape": [names[name] for name in "MNK"], "unpacks": unpacks, **more}
        if self.declares is not None:
            asked["launches"] = self.declares.messages(fmt, names, self._symbol, unpacks)
        self._executions.call(fmt, asked.get("launches", ()))
        if self._schedule is None or self._compiled is None:
            return products.call(operands, asked, runs)
        placed = self._compiled.under(fmt, self._schedule)
        asked |= {
            "schedule": asdict(self._schedule), "placed": {key: asdict(one) for key, one in placed.items()},
            "adds_floats": self._any_bits,
        }  # fmt: skip
        made, said = products.call(operands, asked, Runs(self.walls, scheduled=True, unaligned=runs.unaligned))
        added = said.get("adds_floats") is True and self._may_add_floats
        self.adds_floats = self.adds_floats or added or not self.declaration.deterministic
        unset = said.get("unset")
        told = [printable(str(place), 100) for place in unset[:MOST_UNSET]] if isinstance(unset, list) else []
        self.unset = tuple(dict.fromkeys((*self.unset, *told)))
        return made, said

    @property
    def _runs(self) -> Runs:
        """How often an ordinary call is made.

        A task whose bits may differ is called once, so that each answer is judged. Libraries may add in another order
        at other addresses; code that is launched here may not.
        """
        if not self._any_bits:
            again = _MOST_AGAIN if HOSTS[self.host.name].emulated else None
            return Runs(self.walls, same="all" if self._source.on_host else "fixed", again=again)
        return Runs(self.walls[-1:] if self.declaration.computes in TASKS else self.walls)

    @property
    def walls(self) -> tuple[Wall, ...]:
        """Where its operands lie in the runs of a call."""
        if self._schedule is None:
            return ORDINARY
        if self._unaligned:
            return ("apart",)
        return ("before",) if self._schedule.wall_before else ("behind",)

    def beside(self, who: str) -> Products:
        """Start a further process of it, which the caller closes."""
        conversation = self._source.converse(who, self._time_limit, self._verbose)
        self._observe(conversation)
        return Products(conversation)

    def _observe(self, conversation: Conversation) -> None:
        conversation.begun, conversation.ending = self._executions.begun, self._executions.look

    @property
    def _any_bits(self) -> bool:
        """Whether the bits of its outputs may differ between calls, which is then no fault.

        True if it declares so, or if it adds floats by atomic operations on a real GPU and declares no order. (The
        emulator runs blocks one after another.) All of its outputs are then judged by the bound.
        """
        if not self.declaration.deterministic:
            return True
        return self._may_add_floats and not self.declaration.ordered and not HOSTS[self.host.name].emulated

    def _called_with(self, weights: Weights) -> tuple[int, int]:
        """Return rows and columns of a call with such weights: their own, or the next larger ones in its domain."""
        unit = Extent(multiple=math.lcm(weights.fmt.unit, self.operands.activations.values))
        k = next((k for k in _multiples(self.domain.k, weights.k) if k in unit), None)
        n = self.domain.n.up(weights.n)
        if k is None or n is None:
            raise KernelFault(f"no call of {weights.n} rows and {weights.k} columns is in its domain")
        return n, k

    def restart(self) -> None:
        self._conversation.end()

    def close(self) -> None:
        """End its processes."""
        self._conversation.stop()
        self.loaded.close()
        self._blocks.close()
        if self._reports is not None:
            self._reports.close()
        if self._oracle is not None:
            self._oracle.close()
        self._source.close()


def _multiples(extent: Extent, value: int) -> Iterator[int]:
    """Yield the values of an extent from `value` on, enough to decide whether one is a multiple of a superblock."""
    found = extent.up(value)
    for _ in range(1 << 8):
        if found is None:
            return
        yield found
        found = extent.up(found + 1)


def _declared(conversation: Conversation, said: dict[str, Any], name: str) -> Declaration:
    """Parse the first message of a kernel's process as its declaration. Raises UsageError, KernelFault."""
    try:
        return declaration_of_table(said["declared"])
    except UsageError as error:
        raise UsageError(f"kernel {name}: {printable(str(error), 600)}", error.id) from None
    except (KeyError, AttributeError):
        conversation.garbage()
