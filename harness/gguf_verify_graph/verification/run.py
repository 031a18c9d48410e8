"""Verification of a model's graph on a device of llama.cpp: every operation is judged on its actual inputs.

The graph is evaluated for a prompt, then for some tokens one at a time: backends compute few and many tokens by
different code. Each node is computed alone (llama.cpp does not fuse recorded nodes; `fusing` compares), and the graph
continues with the device's output. So errors are not blamed on later nodes. Weights are the file's bytes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_verify.backend_results import DeviceInfo, EndedBy, GraphOptions, GraphReport, GraphStep, LlamaBuild, Varying
from gguf_verify.formats.tensor_types import tensor_type
from gguf_verify.gguf.hyper_parameters import why_meaningless
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.llama.builds import path_of
from gguf_verify.llama.evaluations import ALONE, Evaluation, Slot
from gguf_verify.llama.library import Llama
from gguf_verify.llama.process import FileRefused, LlamaRefused
from gguf_verify.processes.sandbox import sandboxed
from gguf_verify.support.errors import EnvironmentFault, LlamaFault, NothingToVerify, UsageError, signal_of
from gguf_verify.support.near import nearest, spelled_as
from gguf_verify.support.progress import progress_bar, under_way
from gguf_verify.support.text import printable
from gguf_verify.support.version import project_version

from .fusing import FUSED, Fusing
from .invariance import Invariance
from .steps import step_of
from .tally import Tally

#: Upper limit of ggml's type numbers.
_TYPE_IDS = 256
_FLASH = {"auto": -1, "off": 0, "on": 1}


def verify_graph(path: Path | str, options: GraphOptions | None = None, command: str = "") -> GraphReport:
    """Judge every node of a model's graph.

    Raises MalformedFile for a refused file, UsageError for a device or a type that does not exist, NothingToVerify if
    the prompt has no token, EnvironmentFault if llama.cpp cannot be used or refuses the model. Later faults are in the
    report.
    """
    options = options or GraphOptions()
    with sandboxed(options.sandbox), open_model(path) as model, open_llama(options) as llama:
        return Run(model, llama, options).report(command)


@contextmanager
def open_llama(options: GraphOptions) -> Iterator[Llama]:
    """Start llama.cpp's process with the requested build. Raises UsageError, EnvironmentFault."""
    with Llama(options.time_limit, options.verbose, build=path_of(options.llama)) as llama:
        yield llama


def known_devices(options: GraphOptions) -> tuple[LlamaBuild, list[DeviceInfo]]:
    """Return a build of llama.cpp and its devices. Raises UsageError, EnvironmentFault."""
    with sandboxed(options.sandbox), open_llama(options) as llama:
        return build_of(llama), devices_of(llama)


def devices_of(llama: Llama) -> list[DeviceInfo]:
    """Return the devices in the build's ggml registry."""
    return [
        DeviceInfo(
            name=printable(d.name, 100), backend=printable(d.backend, 100), description=printable(d.description, 200),
            kind=printable(d.kind, 100), memory=d.total,
        )
        for d in llama.devices()
    ]  # fmt: skip


def build_of(llama: Llama) -> LlamaBuild:
    """Return the build that a llama.cpp process has loaded."""
    said = llama.versions()
    return LlamaBuild(
        llama_cpp=printable(said["llama_cpp"], 100),
        ggml=printable(said["ggml"], 100),
        llama_cpp_python=printable(said["llama_cpp_python"], 100),
        folder=printable(said["folder"], 400),
        features=printable(said["system"], 600),
    )


class Run:
    """One run; `report` performs it."""

    def __init__(self, model: Model, llama: Llama, options: GraphOptions) -> None:
        self._model, self._llama, self._options = model, llama, options
        self._device = self._chosen()
        self._tally = Tally(self._device.name, options.node)
        self._evaluations: list[str] = []
        self._steps: list[GraphStep] = []
        whole = options.ops == GraphOptions.ops and not options.node
        self._invariance = Invariance(whole and len(options.micro_batches) > 1)
        self._slots = Invariance(whole and options.slots)
        self._fused: tuple[Varying, ...] = ()

    def _chosen(self) -> DeviceInfo:
        known = devices_of(self._llama)
        names = [d.name for d in known]
        for device in known:
            if device.name == spelled_as(self._options.device, names):
                return device
        wanted = printable(self._options.device, 100)
        there = f"{nearest(wanted, names)}there {'are' if len(names) > 1 else 'is'} {', '.join(names)}"
        raise UsageError(f"no device is called {wanted}: {there}", "device")

    def report(self, command: str) -> GraphReport:
        """Evaluate, judge, and return the report."""
        sha256, build, began = self._model.sha256(), build_of(self._llama), time.monotonic()
        ended = self._ending()
        fault = printable(str(ended), 600) if isinstance(ended, Exception) else ""
        ended_by: EndedBy = "" if isinstance(ended, Exception) else ended
        if not ended_by:
            fault = fault or self._model.altered() or ""
        return GraphReport(
            gguf_verify=project_version(),
            path=str(self._model.path),
            sha256=sha256,
            architecture=printable(self._model.architecture or "", 64),
            build=build,
            device=self._device,
            options=self._options,
            evaluations=tuple(self._evaluations),
            operations=self._tally.operations,
            wrong=tuple(self._tally.wrong),
            wrong_nodes=self._tally.wrong_nodes,
            not_judged=self._tally.not_judged,
            graph=tuple(self._steps),
            varying=self._invariance.found + self._slots.found + self._fused,
            fault=fault,
            ended_by=ended_by,
            seconds=time.monotonic() - began,
            command=command,
        )

    def _ending(self) -> EndedBy | LlamaFault | LlamaRefused:
        """Evaluate the graph. Returns what ended the run early, or the fault that broke it off."""
        try:
            self._evaluate()
        except (LlamaFault, LlamaRefused) as error:
            return error
        except KeyboardInterrupt as error:
            return signal_of(error)
        except _FirstFailure:
            return "first failure"
        return ""

    def _evaluate(self) -> None:
        options, model = self._options, self._llama.model
        why = why_meaningless(self._model)
        if why is not None:
            raise FileRefused(why)
        try:
            info = model.open_on(self._model, options.threads, self._device.name, options.layers, options.repack)
            tokens = model.tokenize(options.prompt)
        except LlamaRefused as error:
            raise EnvironmentFault(f"llama.cpp refuses the model: {printable(str(error), 400)}") from None
        if not tokens:
            raise NothingToVerify("the prompt has no token")
        types = {"type_k": _type_of(options.type_k, "-ctk"), "type_v": _type_of(options.type_v, "-ctv")}
        size = options.ctx_size or len(tokens) + options.n_predict + 1
        if size < len(tokens):
            raise UsageError(f"the prompt has {len(tokens)} tokens, more than the context of {size}", "prompt-too-long")
        embeds = False
        sizes = options.micro_batches or (len(tokens),)
        for micro in dict.fromkeys(min(size, len(tokens)) for size in sizes):
            embeds = self._make_context(size, len(tokens), micro, **types)
            batch, position = tokens, 0
            if info["encoder"] and info["decoder"]:  # the encoder reads the prompt, the decoder starts empty
                model.read_source(tokens)
                batch = [info["decoder_start"]]
            words = f"{len(tokens)} tokens" + (f" in micro-batches of {micro}" if micro < len(tokens) else "")
            self._invariance.begin(micro, len(batch))
            last = self._judge(f"the prompt of {words}", batch, position)
            self._invariance.end()
            for i in range(0 if embeds else options.n_predict):
                position += len(batch)
                batch = [int(np.argmax(last.logits[-1]))]
                last = self._judge(f"token {i + 1} after the prompt of {words}", batch, position)
        if options.fused:
            self._together(tokens, size, info, types)
        if options.slots:
            if embeds or info["encoder"]:
                raise UsageError("--slots needs a model with a KV cache; an encoder has none", "slots")
            self._in_slots(tokens, size, types)

    def _together(self, tokens: list[int], size: int, info: dict[str, Any], types: dict[str, int]) -> None:
        """Evaluate the prompt with fused nodes."""
        words = f"the prompt of {len(tokens)} tokens"
        self._make_context(size, len(tokens), len(tokens), **types)
        batch = [info["decoder_start"]] if info["encoder"] and info["decoder"] else tokens
        self._evaluations.append(f"{words}, {FUSED}")
        before = self._tally.wrong_nodes
        self._fused = (Fusing(self._llama.model, batch, self._weights).run(self._tally, words),)
        if self._options.exit_first and self._tally.wrong_nodes > before:
            raise _FirstFailure

    def _in_slots(self, tokens: list[int], size: int, types: dict[str, int]) -> None:
        """Evaluate the prompt in each of two slots that share a cache, and next to another sequence: its own tokens in
        reverse order."""
        others = tuple(reversed(tokens))
        self._make_context(2 * size, 2 * len(tokens), 2 * len(tokens), sequences=2, **types)
        for words, slot in (
            ("", ALONE),
            ("in the second slot", Slot(1)),
            ("behind another sequence", Slot(1, ahead=others)),
            ("before another sequence", Slot(0, behind=others)),
        ):
            of_batch = len(tokens) + len(slot.ahead) + len(slot.behind)
            self._slots.begin(of_batch, of_batch, len(slot.ahead), words, of_batch > len(tokens))
            self._judge(f"the prompt of {len(tokens)} tokens {words or 'in the first of two slots'}", tokens, 0, slot)
            self._slots.end()

    def _make_context(self, size: int, n_batch: int, micro: int, **options: int) -> bool:
        """Like `LoadedModel.make_context`. Raises EnvironmentFault."""
        flash = _FLASH[self._options.flash]
        try:
            return self._llama.model.make_context(size, n_batch, n_ubatch=micro, flash=flash, **options)
        except LlamaRefused as error:
            raise EnvironmentFault(f"llama.cpp cannot make this context: {printable(str(error), 400)}") from None

    def _judge(self, words: str, tokens: list[int], position: int, slot: Slot = ALONE) -> Evaluation:
        self._evaluations.append(words)
        with progress_bar(words, None, " nodes", self._options.progress) as bar:
            for node in self._llama.model.nodes(tokens, self._weights, self._options.ops, position, slot):
                if isinstance(node, Evaluation):
                    return node
                under_way(bar, node.name)
                if len(self._evaluations) == 1:
                    self._steps.append(step_of(node))
                right = self._tally.add(node, words)
                self._invariance.note(node)
                self._slots.note(node)
                bar.update(1)
                if self._options.exit_first and not right:
                    raise _FirstFailure
        raise LlamaFault("llama.cpp ended an evaluation without a result")

    def _weights(self, name: str) -> npt.NDArray[np.uint8] | None:
        tensor = self._model.tensors.get(name)
        return None if tensor is None else tensor.raw


class _FirstFailure(Exception):
    """A wrong node ends the run (`--exitfirst`)."""


def _type_of(name: str, flag: str) -> int:
    """Return ggml's number of a cache type; -1 for "". Raises UsageError."""
    if not name:
        return -1
    known = {kind.name.lower(): kind.type_id for i in range(_TYPE_IDS) if (kind := tensor_type(i)) is not None}
    if name.lower() not in known:
        near = nearest(name.lower(), list(known))
        raise UsageError(f"{flag}: unknown type {printable(name, 40)}: {near}use f16, q8_0 or the like", "cache-type")
    return known[name.lower()]


def check_pattern(pattern: str) -> None:
    """Raise UsageError if `--ops` is not a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--ops is not a regular expression: {error}") from None
