"""Every operation of a model's graph on a device of llama.cpp, judged node by node on its own actual inputs.

The graph is evaluated for a prompt, and then for some tokens one at a time, since backends compute few tokens and many
by different code. Each node is computed by itself (llama.cpp fuses none that somebody asks for), and the graph goes on
with what the device computed; so what is wrong upstream is not blamed on what follows. Weights are the file's bytes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .backend_results import (
    MAX_WRONG,
    DeviceInfo,
    GraphOptions,
    GraphReport,
    LlamaBuild,
    NotJudged,
    OperationResult,
    WrongNode,
)
from .formats import tensor_type
from .gguf import Model, open_model
from .llama import Evaluation, Llama, LlamaRefused
from .llama.builds import find
from .llama.graph import GraphNode
from .operations import OPERATIONS, Judged, Node, NoDefinition, Operand, judge
from .processes.sandbox import sandboxed
from .support.errors import EnvironmentFault, LlamaFault, NothingToVerify, UsageError, signal_of
from .support.near import nearest
from .support.progress import progress_bar, under_way
from .support.text import printable
from .support.version import project_version

#: Operations whose nodes are told apart by the type of a source.
_BY_SOURCE = {"MUL_MAT": 0, "MUL_MAT_ID": 0, "GET_ROWS": 0, "FLASH_ATTN_EXT": 1, "OUT_PROD": 0}
#: ggml's numbers of types are below this.
_TYPE_IDS = 256
_FLASH = {"auto": -1, "off": 0, "on": 1}


def verify_graph(path: Path | str, options: GraphOptions | None = None, command: str = "") -> GraphReport:
    """Judge every node of a model's graph.

    Raises MalformedFile for a file that is refused, UsageError for a device or a type that does not exist,
    NothingToVerify where the prompt has no token, EnvironmentFault where llama.cpp cannot be used or refuses the model.
    What breaks the run off later is in the report.
    """
    options = options or GraphOptions()
    with sandboxed(options.sandbox), open_model(path) as model, _llama(options) as llama:
        return _Run(model, llama, options, command).report()


@contextmanager
def _llama(options: GraphOptions) -> Iterator[Llama]:
    build = None
    if options.llama:
        found = find(Path(options.llama))
        if isinstance(found, str):
            raise UsageError(printable(found, 400), "llama-build")
        build = found.folder
    with Llama(options.time_limit, options.verbose, build=build) as llama:
        yield llama


def known_devices(options: GraphOptions) -> tuple[LlamaBuild, list[DeviceInfo]]:
    """A build of llama.cpp and its devices. Raises UsageError, EnvironmentFault."""
    with sandboxed(options.sandbox), _llama(options) as llama:
        return build_of(llama), devices_of(llama)


def devices_of(llama: Llama) -> list[DeviceInfo]:
    """What ggml's registry of a build has."""
    return [
        DeviceInfo(
            name=printable(d.name, 100), backend=printable(d.backend, 100), description=printable(d.description, 200),
            kind=printable(d.kind, 100), memory=d.total,
        )
        for d in llama.devices()
    ]  # fmt: skip


def build_of(llama: Llama) -> LlamaBuild:
    """The build that a llama.cpp process has loaded."""
    said = llama.versions()
    return LlamaBuild(
        llama_cpp=printable(said["llama_cpp"], 100), ggml=printable(said["ggml"], 100),
        llama_cpp_python=printable(said["llama_cpp_python"], 100), folder=printable(said["folder"], 400),
        features=printable(said["system"], 600),
    )  # fmt: skip


class _Run:
    """One run; `report` makes it."""

    def __init__(self, model: Model, llama: Llama, options: GraphOptions, command: str) -> None:
        self._model, self._llama, self._options = model, llama, options
        self._device = self._chosen()
        self._tally = _Tally(self._device.name, options.node)
        self._report = GraphReport(
            gguf_verify=project_version(), path=str(model.path), sha256=model.sha256(),
            architecture=printable(model.architecture or "", 64), build=build_of(llama), device=self._device,
            options=options, command=command,
        )  # fmt: skip
        self._evaluations: list[str] = []

    def _chosen(self) -> DeviceInfo:
        known = devices_of(self._llama)
        for device in known:
            if device.name == self._options.device:
                return device
        names = [d.name for d in known]
        wanted = printable(self._options.device, 100)
        there = f"{nearest(wanted, names)}there {'are' if len(names) > 1 else 'is'} {', '.join(names)}"
        raise UsageError(f"no device is called {wanted}: {there}", "device")

    def report(self) -> GraphReport:
        """Evaluate and judge."""
        began, report = time.monotonic(), self._report
        try:
            self._evaluate()
        except LlamaFault as error:
            report.fault = str(error)
        except KeyboardInterrupt as error:
            report.ended_by = signal_of(error)
        except _FirstFailure:
            report.ended_by = "first failure"
        altered = None if report.ended_by else self._model.altered()
        if altered is not None:
            report.fault = report.fault or altered
        report.evaluations = tuple(self._evaluations)
        report.operations, report.not_judged = self._tally.operations, self._tally.not_judged
        report.wrong, report.wrong_nodes = tuple(self._tally.wrong), self._tally.wrong_nodes
        report.seconds = time.monotonic() - began
        return report

    def _evaluate(self) -> None:
        options, model = self._options, self._llama.model
        try:
            info = model.open_on(self._model.path, options.threads, self._device.name, options.layers, options.repack)
            tokens = model.tokenize(options.prompt)
        except LlamaRefused as error:
            raise EnvironmentFault(f"llama.cpp refuses the model: {printable(str(error), 400)}") from None
        if not tokens:
            raise NothingToVerify("the prompt has no token")
        types = {"type_k": _type_of(options.type_k, "-ctk"), "type_v": _type_of(options.type_v, "-ctv")}
        size = options.ctx_size or len(tokens) + options.n_predict + 1
        if size < len(tokens):
            raise UsageError(f"the prompt has {len(tokens)} tokens, more than the context of {size}", "prompt-too-long")
        for micro in options.micro_batches or (len(tokens),):
            try:
                embeds = model.make_context(size, len(tokens), n_ubatch=micro, flash=_FLASH[options.flash], **types)
            except LlamaRefused as error:
                raise EnvironmentFault(f"llama.cpp makes no such context: {printable(str(error), 400)}") from None
            batch, position = tokens, 0
            if info["encoder"] and info["decoder"]:  # it reads the prompt and begins to write from nothing
                model.read_source(tokens)
                batch = [info["decoder_start"]]
            words = f"{len(tokens)} tokens" + (f" in micro-batches of {micro}" if micro < len(tokens) else "")
            last = self._judge(f"the prompt of {words}", batch, position)
            for i in range(0 if embeds else options.n_predict):
                position += len(batch)
                batch = [int(np.argmax(last.logits[-1]))]
                last = self._judge(f"token {i + 1} behind the prompt of {words}", batch, position)

    def _judge(self, words: str, tokens: list[int], position: int) -> Evaluation:
        self._evaluations.append(words)
        with progress_bar(words, None, " nodes", self._options.progress) as bar:
            for node in self._llama.model.nodes(tokens, self._weights, self._options.ops, position):
                if isinstance(node, Evaluation):
                    return node
                under_way(bar, node.name)
                right = self._tally.add(node, words)
                bar.update(1)
                if self._options.exit_first and not right:
                    raise _FirstFailure
        raise LlamaFault("llama.cpp ended an evaluation without a result")

    def _weights(self, name: str) -> np.ndarray | None:
        tensor = self._model.tensors.get(name)
        return None if tensor is None else tensor.raw


class _FirstFailure(Exception):
    """A node is wrong, and the run was to end there."""


class _Tally:
    """What the nodes come to, by operation and device.

    Args:
        device: that was asked for.
        only: judge nodes of this name alone; "" for all.
    """

    def __init__(self, device: str, only: str) -> None:
        self._device, self._only = device, only
        self._found: dict[tuple[str, str], OperationResult] = {}
        self._left: dict[tuple[str, str, str], int] = {}
        self.wrong: list[WrongNode] = []
        self.wrong_nodes = 0

    @property
    def operations(self) -> tuple[OperationResult, ...]:
        """In the order in which they first came."""
        return tuple(self._found.values())

    @property
    def not_judged(self) -> tuple[NotJudged, ...]:
        """Likewise."""
        return tuple(
            NotJudged(operation=operation, device=device, why=why, nodes=n)
            for (operation, device, why), n in self._left.items()
        )

    def add(self, given: GraphNode, evaluation: str) -> bool:
        """Judge a node; whether it is not wrong."""
        if self._only and given.name != self._only:
            return True
        device = printable(given.device, 100)
        if given.node is None:
            self._leave(given.operation, device, given.why)
            return True
        named = _named(given.node)
        try:
            judged = judge(given.node)
        except NoDefinition as error:
            self._leave(named, device, str(error))
            return True
        wrong = None if judged.passed else _wrong(given, given.node, named, judged, evaluation)
        self._count(named, device, judged, wrong)
        return wrong is None

    def _leave(self, operation: str, device: str, why: str) -> None:
        key = printable(operation, 100), device, printable(why, 300)
        self._left[key] = self._left.get(key, 0) + 1

    def _count(self, operation: str, device: str, judged: Judged, wrong: WrongNode | None) -> None:
        key = operation, device
        old = self._found.get(key) or OperationResult(
            operation=operation, device=device, fell_back=device != self._device, nodes=0, elements=0, definitions=(),
            utilisation=0.0, exact=True, ambiguous=0, wrong=0, first=None,
        )  # fmt: skip
        known = old.definitions if judged.definition in old.definitions else (*old.definitions, judged.definition)
        self._found[key] = OperationResult(
            operation=operation, device=device, fell_back=old.fell_back, nodes=old.nodes + 1,
            elements=old.elements + judged.elements, definitions=known,
            utilisation=max(old.utilisation, judged.utilisation), exact=old.exact and judged.by_bits,
            ambiguous=old.ambiguous + judged.ambiguous, wrong=old.wrong + (wrong is not None),
            first=old.first or wrong,
        )  # fmt: skip
        if wrong is not None:
            self.wrong_nodes += 1
            if len(self.wrong) < MAX_WRONG:
                self.wrong.append(wrong)


def _named(node: Node) -> str:
    """The operation with the type that decides how it is computed: of the matrix, the table, the cache or the
    result."""
    at = _BY_SOURCE.get(node.op)
    operand = node.output if at is None else node.optional(at)
    kind = "" if operand is None or (at is None and operand.type == "F32") else f" {operand.type}"
    return printable(f"{node.operation}{kind}", 100)


def _wrong(given: GraphNode, node: Node, named: str, judged: Judged, evaluation: str) -> WrongNode:
    axes = OPERATIONS[node.op].axes
    place = [f"{axis} {at}" for axis, at, n in zip(axes, judged.place, node.output.shape, strict=True) if n > 1]
    shape = node.output.shape
    spans = [_span(axis, *of, n) for axis, of, n in zip(axes, judged.extent, shape, strict=False) if n > 1]
    inputs = [f"src[{i}] {_described(s)}" for i, s in enumerate(node.sources) if s is not None]
    return WrongNode(
        operation=named, node=printable(given.name, 100), device=printable(given.device, 100), number=given.number,
        evaluation=evaluation, definition=judged.definition, inputs=tuple(inputs), output=_described(node.output),
        place=", ".join(place), got=judged.got, expected=judged.expected, tolerance=judged.tolerance,
        utilisation=judged.utilisation, wrong=judged.wrong, elements=judged.elements, extent="; ".join(spans),
    )  # fmt: skip


def _span(axis: str, first: int, last: int, count: int, n: int) -> str:
    """Where wrong elements lie on an axis of n indices."""
    if count == 1:
        return f"{axis} {first}"
    if count == n:
        return f"all {n:,} {axis}s"
    return f"{axis}s {first} to {last}" + ("" if count == last - first + 1 else f", {count:,} of them")


def _described(operand: Operand) -> str:
    sizes = " × ".join(map(str, operand.ne))
    gaps = "" if operand.contiguous else ", not contiguous"
    return f"{printable(operand.name, 64)} {operand.type} [{sizes}]{gaps}".strip()


def _type_of(name: str, flag: str) -> int:
    """ggml's number of a type of the cache; -1 for "". Raises UsageError."""
    if not name:
        return -1
    known = {kind.name.lower(): kind.type_id for i in range(_TYPE_IDS) if (kind := tensor_type(i)) is not None}
    if name.lower() not in known:
        near = nearest(name.lower(), list(known))
        raise UsageError(f"{flag} knows no type {printable(name, 40)}: {near}it takes f16, q8_0 and such", "cache-type")
    return known[name.lower()]


def check_pattern(pattern: str) -> None:
    """Raises UsageError where `--ops` is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--ops is not a regular expression: {error}") from None


__all__ = ["check_pattern", "known_devices", "verify_graph"]
