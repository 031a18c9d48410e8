"""A model in llama.cpp's process: tokens, evaluations of its graph, capture and replacement of its products."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from ..support.errors import EnvironmentFault, LlamaFault
from ..support.protocol import ProtocolError
from . import answers
from .evaluations import ALONE, Evaluation, FusedEnd, FusedOutput, Slot
from .gemms import Gemm, TappedProduct, tapped_product
from .graph import GraphNode, WeightsOf, graph_node
from .handed import files_of

if TYPE_CHECKING:
    from ..gguf.model import Model
    from .process import LlamaProcess

Floats = npt.NDArray[np.float32]
T = TypeVar("T")

#: Number of products that llama.cpp may compute ahead while one is judged. Each takes room in the lane; the judging
#: process holds only the one it judges.
_AHEAD = 2


def returned(steps: Generator[Any, None, T]) -> T:
    """The return value of a generator."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class LoadedModel:
    """The model in a llama.cpp process, and its context."""

    def __init__(self, process: LlamaProcess) -> None:
        self._process = process

    def open(self, model: Model | Path, threads: int, repack: bool = False, backend: str = "cpu") -> dict[str, Any]:
        """Load a model with all its layers on one backend: the files of an open model, or those of a path.

        Raises LlamaRefused if llama.cpp rejects the file, EnvironmentFault if the backend cannot be used here.
        """
        self._process.start_backend(backend)
        with files_of(model) as files:
            ((path, *_),) = self._process.give(files)
            result, _ = self._process.ask("open", path=path, threads=threads, repack=repack, backend=backend)
        return msgspec.structs.asdict(self._process.typed("open", result, answers.Opened))

    def open_on(
        self, model: Model | Path, threads: int, device: str, layers: int = -1, repack: bool = False
    ) -> dict[str, Any]:
        """Load a model with `layers` of its layers on a device of ggml's registry; all if negative.

        Raises LlamaRefused if there is no such device, or llama.cpp rejects the file.
        """
        with files_of(model) as files:
            ((path, *_),) = self._process.give(files)
            result, _ = self._process.ask(
                "open_on", path=path, threads=threads, repack=repack, device=device, layers=layers
            )
        return msgspec.structs.asdict(self._process.typed("open_on", result, answers.Opened))

    def make_context(self, n_ctx: int, n_batch: int | None = None, **options: int) -> bool:
        """Make a context of n_ctx tokens, of which n_batch (default: all) fit in one batch. Evaluations need one.

        Args:
            options: n_ubatch, type_k, type_v, flash and sequences, see `worker.model`.

        Returns:
            whether the model computes embeddings. An encoder or embedding model has no memory of past tokens or no
            decoder; it does not generate, and its evaluations return embeddings, not logits.
        """
        arguments: dict[str, Any] = {"n_ctx": n_ctx, "n_batch": n_batch or n_ctx, **options}
        result, _ = self._process.ask("make_context", **arguments)
        return self._process.typed("make_context", result, answers.Context).embeds

    def read_source(self, tokens: list[int]) -> None:
        """Set the source of an encoder-decoder model. Each later evaluation encodes it first, with its nodes tapped."""
        self._process.ask("read_source", tokens=tokens)

    def tokenize(self, text: str) -> list[int]:
        """Tokenize a prompt, with the special tokens that the model requires."""
        result, _ = self._process.ask("tokenize", text=text)
        return self._process.typed("tokenize", result, answers.Tokens).tokens

    def pieces(self, tokens: list[int]) -> list[str]:
        """Return each token's text."""
        result, _ = self._process.ask("pieces", tokens=tokens)
        made = self._process.typed("pieces", result, answers.Pieces).pieces
        with self._process.valid("pieces"):
            if len(made) != len(tokens):
                raise ProtocolError("the number of texts is not that of the tokens")
        return made

    def generate(self, tokens: list[int], n: int, on_token: Callable[[], object] = lambda: None) -> list[int]:
        """Generate n greedy tokens after a prompt, one at a time; the time limit applies to each token."""
        self._process.send("generate", {}, {"tokens": tokens, "n": n})
        told = 0
        while True:
            header, _ = self._process.receive("generate")
            if header.get("event") != "token":
                result = self._process.result("generate", header)
                made = self._process.typed("generate", result, answers.Tokens).tokens
            told += 1
            with self._process.valid("generate"):
                if header.get("event") != "token" and len(made) == n:
                    return made
                if header.get("event") != "token" or told > n:
                    raise ProtocolError("not the requested number of tokens")
            on_token()

    def evaluate(self, tokens: list[int], first: int = 0) -> Evaluation:
        """Evaluate all tokens in one batch, without taps; returns the logits of those from index `first` on."""
        result, out = self._process.ask("evaluate", tokens=tokens, mode="plain", options={}, first=first)
        return self._evaluation(result, out)

    def _evaluation(self, result: object, out: list[npt.NDArray[Any]]) -> Evaluation:
        """Convert an evaluation's answer. Raises LlamaFault if it is invalid."""
        seen = self._process.typed("evaluate", result, answers.Evaluated).seen
        with self._process.valid("evaluate"):
            (logits,) = out
            return Evaluation(answers.expect(logits, np.float32, None, None), seen.lookup, seen.unsupported, seen.used)

    def capture(
        self,
        tokens: list[int],
        activations: tuple[int, ...] = (),
        checksum: bool = False,
        idle: bool = False,
        position: int = 0,
    ) -> Iterator[Gemm | Evaluation]:
        """Yield each GEMM with weights as it is computed, then the Evaluation. Meanwhile llama.cpp continues with the
        graph, up to `_AHEAD` products ahead.

        Args:
            tokens: one batch.
            activations: ggml types in which to return each quantized GEMM's activations too, made by llama.cpp's own
                quantizer. If any is given, products with other weights return their activations in the weights'
                type. A backend that decides the format itself returns that one.
            checksum: also return the crc32 of the weights.
            idle: also yield matrices that a node holds but did not use: experts to which no token was routed.
            position: of the first token; the tokens before it must have been evaluated last.
        """
        for node, answer in self._tapped("capture", tokens, activations, checksum, position):
            if isinstance(node, Evaluation):
                yield node
                return
            try:
                yield from node.gemms()
                if idle:
                    yield from node.idle()
            except GeneratorExit:
                self._stop()
                raise
            answer(None)

    def nodes(
        self, tokens: list[int], weights: WeightsOf, wanted: str = ".*", position: int = 0, slot: Slot = ALONE
    ) -> Iterator[GraphNode | Evaluation]:
        """Yield each computing node of the graph with its actual inputs, as it is computed, then the Evaluation.
        Meanwhile llama.cpp continues with the graph, up to `_AHEAD` nodes ahead.

        Args:
            tokens: one batch.
            weights: returns the bytes of a tensor in the model's file by name, or None.
            wanted: a regular expression that must match an operation's full name; others are not reported.
            position: of the first token; the tokens before it must have been evaluated last.
            slot: the placement of the tokens, and the tokens beside them.
        """
        options = {"wanted": wanted, "ahead": _AHEAD}
        arguments = {"tokens": tokens, "mode": "nodes", "options": options, "position": position}
        beside = {"sequence": slot.sequence, "ahead": list(slot.ahead), "behind": list(slot.behind)}
        self._process.send("evaluate", {}, arguments | beside)
        while True:
            header, arrays = self._process.receive("evaluate")
            if header.get("event") != "node":
                yield self._evaluation(self._process.result("evaluate", header), arrays)
                return
            said = self._process.typed("evaluate", header, answers.NodeSaid)
            with self._process.valid("evaluate"):
                node = graph_node(said, arrays, weights)
            try:
                yield node
            except GeneratorExit:
                self._stop()
                raise
            self._process.reply("evaluate", {})

    def record(self, tokens: list[int]) -> tuple[list[answers.RecordedNode], Evaluation]:
        """Evaluate node by node, keeping each output in llama.cpp's process; returns the nodes without views."""
        result, out = self._process.ask("evaluate", tokens=tokens, mode="record", options={})
        nodes = self._process.typed("evaluate", result, answers.Recorded).nodes
        with self._process.valid("evaluate"):
            for number, node in enumerate(nodes, 1):
                if not all(0 < read < number for read in node.reads) or (
                    node.use and not number < node.use <= len(nodes)
                ):
                    raise ProtocolError("a node that reads a later node")
        return nodes, self._evaluation(result, out)

    def windows(
        self, tokens: list[int], windows: Sequence[tuple[int, int]], back: bool = True
    ) -> Iterator[FusedOutput | FusedEnd]:
        """Evaluate with the nodes of each window given to the backend together, so that it may fuse them, on the
        recorded inputs. Yields each output of a window whose bits differ, then the end.

        Args:
            tokens: those of the record.
            windows: the first and the last node of each, in one graph, from 1, in order; all other nodes are computed
                one by one.
            back: the graph continues with the record's bits in place of differing ones.
        """
        options = {"windows": windows, "back": back}
        self._process.send("evaluate", {}, {"tokens": tokens, "mode": "windows", "options": options})
        while True:
            header, arrays = self._process.receive("evaluate")
            if header.get("event") != "fused":
                result = self._process.result("evaluate", header)
                said = self._process.typed("evaluate", result, answers.ComparedWindows)
                yield FusedEnd(said.compared, said.fused, self._evaluation(result, arrays))
                return
            one = self._process.typed("evaluate", header, answers.FusedSaid)
            with self._process.valid("evaluate"):
                (span,) = arrays
                answers.expect(span, np.uint8, None)
                if not one.first <= one.number <= one.last or (one.first, one.last) not in windows:
                    raise ProtocolError("not a requested window")
            yield FusedOutput(one.number, (one.first, one.last), span)
            self._process.reply("evaluate", {})

    def _stop(self) -> None:
        """Let the graph finish unobserved, after a capture was abandoned."""
        with contextlib.suppress(OSError, EOFError, EnvironmentFault):
            self._process.reply("evaluate", {"stop": True})  # sent once: the process expects no further answers
            while "event" in self._process.receive("evaluate")[0]:
                pass

    def graft(
        self, tokens: list[int], replace: Callable[[Gemm], Floats | None], activations: tuple[int, ...] = (),
        spared: Collection[str] = (),
    ) -> Evaluation:  # fmt: skip
        """`grafting`, to its end."""
        return returned(self.grafting(tokens, replace, activations, spared))

    def grafting(
        self, tokens: list[int], replace: Callable[[Gemm], Floats | None], activations: tuple[int, ...] = (),
        spared: Collection[str] = (),
    ) -> Generator[None, None, Evaluation]:  # fmt: skip
        """Evaluate with `replace`'s output float32[M, N] in place of llama.cpp's own at each GEMM. Yields after each
        product, while llama.cpp computes the next one.

        Args:
            spared: tensors for all of whose GEMMs `replace` gives an output; where it does not, llama.cpp refuses
                (LlamaRefused). Where the CPU computes, llama.cpp's own is not computed: what a GEMM holds as y then
                means nothing.
        """
        for node, answer in self._tapped("graft", tokens, activations, False, spared=spared):
            if isinstance(node, Evaluation):
                return node
            given = [replace(gemm) for gemm in node.gemms()]
            lacks = node.tensor in spared and any(y is None for y in given)
            answer(None if lacks else node.joined(given))  # rows that were not computed must not be joined
            yield
        raise LlamaFault("llama.cpp ended a graft without a result")

    def _tapped(
        self,
        mode: str,
        tokens: list[int],
        activations: tuple[int, ...],
        checksum: bool,
        position: int = 0,
        spared: Collection[str] = (),
    ) -> Iterator[tuple[TappedProduct | Evaluation, Callable[[Floats | None], None]]]:
        """Yield each product of an evaluation with the function that lets the graph continue, then the Evaluation."""
        options = {
            "activations": list(activations), "checksum": checksum, "ahead": _AHEAD if mode == "capture" else 0,
            "spared": sorted(spared),
        }  # fmt: skip
        arguments = {"tokens": tokens, "mode": mode, "options": options, "position": position}
        self._process.send("evaluate", {}, arguments)

        def answer(y: Floats | None) -> None:
            self._process.reply("evaluate", {}, *([] if y is None else [np.ascontiguousarray(y, np.float32)]))

        while True:
            header, arrays = self._process.receive("evaluate")
            if header.get("event") != "gemm":
                yield self._evaluation(self._process.result("evaluate", header), arrays), answer
                return
            product = self._process.typed("evaluate", header, answers.Product)
            with self._process.valid("evaluate"):
                node = tapped_product(product, arrays)
            yield node, answer
