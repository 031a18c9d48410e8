"""The typed records of a graph whose nodes were judged one by one: see `graph_verification`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from gguf_verify.support.command_line import cores
from gguf_verify.support.errors import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED
from gguf_verify.support.shown import Shown

#: Wrong nodes that are recorded one by one; the rest is counted.
MAX_WRONG = 20
#: Of the JSON of a graph's report.
GRAPH_SCHEMA = 1
#: A prompt of some tokens, in words that every tokenizer knows.
PROMPT = "The quick brown fox jumps over the lazy dog."

if TYPE_CHECKING:  # at run time, completion in notebooks (jedi) fails on a property of such a type
    GraphVerdict = Literal["verified", "mismatch", "interrupted", "broken off", "not everything verified"]
EndedBy = Literal["", "first failure", "SIGINT", "SIGTERM", "SIGHUP"]


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """The user's choices; the command line's help explains each.

    Args:
        device: ggml's name of the device that gets the model.
        llama: a folder with the libraries of llama.cpp; "" for those of llama-cpp-python.
        prompt: the text whose graph is judged.
        n_predict: tokens after it, one at a time.
        micro_batches: the prompt is evaluated in micro-batches of each of these numbers of tokens; empty: in one.
        slots: the prompt is also evaluated in another slot of the cache, and beside another sequence.
        fused: the prompt is also evaluated with nodes given to the device together, which it may then fuse.
        layers: of the model on the device; negative for all.
        type_k, type_v: ggml's types of the cache; "" for llama.cpp's choice.
        flash: attention as one operation: "on", "off" or "auto", llama.cpp's choice.
        ops: a regular expression that the whole name of an operation must match.
        node: judge the nodes of this name alone; "" for all.
        threads: of llama.cpp.
        ctx_size: tokens of the context; 0 for what the prompt and the predicted tokens need.
        repack: let llama.cpp repack its weights.
        time_limit: seconds that llama.cpp may take for one answer.
        exit_first: end at the first wrong node.
        verbose: let llama.cpp's log through.
        progress: show progress on standard error.
        sandbox: how llama.cpp's process is confined.
    """

    device: str = "CPU"
    llama: str = ""
    prompt: str = PROMPT
    n_predict: int = 2
    micro_batches: tuple[int, ...] = ()
    slots: bool = False
    fused: bool = False
    layers: int = -1
    type_k: str = ""
    type_v: str = ""
    flash: Literal["auto", "on", "off"] = "auto"
    ops: str = ".*"
    node: str = ""
    threads: int = field(default_factory=cores)
    ctx_size: int = 0
    repack: bool = False
    time_limit: float = 900.0
    exit_first: bool = False
    verbose: bool = False
    progress: bool = True
    sandbox: str = "auto"


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A device of ggml's registry.

    Args:
        name, backend: ggml's names, such as "Vulkan0" of "Vulkan".
        description: the driver's or the processor's name.
        kind: "CPU", "GPU", "integrated GPU" or "accelerator".
        memory: bytes that it has; 0 where it does not say.
    """

    name: str
    backend: str
    description: str
    kind: str
    memory: int = 0

    @property
    def words(self) -> str:
        """A description in one line."""
        what = self.kind if self.kind == self.backend else f"{self.backend}, {self.kind}"
        memory = f", {self.memory / (1 << 30):.1f} GiB" if self.memory else ""
        return f"{self.description} ({what}{memory})"


class LlamaBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build of llama.cpp: its versions, its features, and its folder or its one library."""

    llama_cpp: str
    ggml: str
    llama_cpp_python: str
    folder: str
    features: str


class GraphStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node as a graph asks for it, without its values.

    Args:
        operation, node: what, and its name in the graph.
        output: its type and sizes, ggml's order.
        sources: of each source, the name, the type and the sizes; "" where there is none.
        parameters: those that are not zero, by name.
    """

    operation: str
    node: str
    output: str = ""
    sources: tuple[str, ...] = ()
    parameters: dict[str, str] = {}


class WrongNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose output is not what its definition says.

    Args:
        operation, node, device: what and where.
        number: in the order of the evaluation's graphs, from 1.
        evaluation: which one, in words.
        definition: what it was judged by.
        inputs: its sources in words.
        output: its type and sizes, ggml's order.
        place: the first wrong element, with the names of the axes.
        got, expected, tolerance, utilisation: of that element; the utilisation is the worst one's.
        wrong, elements: number of wrong elements, and of all.
        extent: where wrong elements lie, in words.
    """

    operation: str
    node: str
    device: str
    number: int
    evaluation: str
    definition: str
    inputs: tuple[str, ...]
    output: str
    place: str
    got: float
    expected: float
    tolerance: float
    utilisation: float
    wrong: int
    elements: int
    extent: str


class OperationResult(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of one operation, type and device.

    Args:
        operation: with its variant and the type of what it multiplies, looks up or writes.
        device: that computed it.
        fell_back: another device was requested.
        nodes, elements: number that were judged.
        definitions: the definitions that they were judged by.
        utilisation: the worst.
        exact: every element has the bits that are expected, by a definition that allows no others.
        ambiguous: elements for which the definition leaves a choice.
        wrong: nodes that fail.
        first: the first of these.
    """

    operation: str
    device: str
    fell_back: bool
    nodes: int
    elements: int
    definitions: tuple[str, ...]
    utilisation: float
    exact: bool
    ambiguous: int
    wrong: int
    first: WrongNode | None


class NotJudged(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes without a definition, or without known inputs."""

    operation: str
    device: str
    why: str
    nodes: int


class Varying(msgspec.Struct, frozen=True, kw_only=True):
    """The first node at which a token has other bits in micro-batches of another size, in another slot, or where nodes
    are fused.

    Args:
        micro_batch, against: the two sizes, the tokens of other sequences included.
        slot: how the tokens stood in the batch, where they were compared with those of the first slot alone; "nodes
            fused" where nodes were compared with the same ones by themselves.
        operation, node, device: of the node; "" where no bits differ.
        token: of the prompt, from 0; -1 where no bits differ, and where nodes were fused.
        compared: outputs of a node and a token that were compared until then; where nodes were fused, outputs of nodes
            that were compared at all.
        fused: what was seen to be fused, and how often, as words; None where that was not looked for.
    """

    micro_batch: int
    against: int
    operation: str
    node: str
    device: str
    token: int
    compared: int
    slot: str = ""
    fused: tuple[str, ...] | None = None


class GraphReport(Shown, msgspec.Struct, kw_only=True):
    """A model's graph on a device, judged node by node.

    Args:
        gguf_verify: this project's version.
        path, sha256: the model's file, a digest for each part.
        architecture: of the model.
        build, device: of llama.cpp, and the requested one.
        options: as `GraphOptions`.
        evaluations: what was evaluated, in words.
        operations: in the order in which they first came.
        wrong: the first wrong nodes, in the order of the graph.
        wrong_nodes: number of all wrong nodes.
        not_judged: nodes that were skipped.
        graph: the nodes of the first evaluation, in their order. They are recorded, not judged: whether the graph has
            the right operations and parameters is a question of its own.
        varying: for each size of micro-batches but the first, and so on, where bits begin to differ.
        fault: the fault that broke the run off; "" without one.
        ended_by: the reason for an early end.
        seconds: duration.
        command: the command that repeats it.
    """

    gguf_verify: str
    path: str
    sha256: tuple[str, ...]
    architecture: str
    build: LlamaBuild
    device: DeviceInfo
    options: GraphOptions
    evaluations: tuple[str, ...] = ()
    operations: tuple[OperationResult, ...] = ()
    wrong: tuple[WrongNode, ...] = ()
    wrong_nodes: int = 0
    not_judged: tuple[NotJudged, ...] = ()
    graph: tuple[GraphStep, ...] = ()
    varying: tuple[Varying, ...] = ()
    fault: str = ""
    ended_by: EndedBy = ""
    seconds: float = 0.0
    command: str = ""

    @property
    def judged(self) -> int:
        """Nodes that were judged."""
        return sum(each.nodes for each in self.operations)

    @property
    def fallen_back(self) -> Iterator[OperationResult]:
        """The operations that another device computed than the requested one."""
        return (each for each in self.operations if each.fell_back)

    @property
    def verdict(self) -> GraphVerdict:
        if self.wrong_nodes:
            return "mismatch"
        if self.ended_by.startswith("SIG"):
            return "interrupted"
        if self.fault:
            return "broken off"
        # nodes that the device did not compute were judged, but do not verify the device
        on_device = any(not each.fell_back and each.elements for each in self.operations)
        return "verified" if on_device and not self.not_judged else "not everything verified"

    @property
    def exit_code(self) -> int:
        if self.verdict == "interrupted":
            return EXIT_INTERRUPTED[self.ended_by]
        return {
            "verified": EXIT_VERIFIED, "mismatch": EXIT_MISMATCH, "broken off": EXIT_ENVIRONMENT,
            "not everything verified": EXIT_UNVERIFIED,
        }[self.verdict]  # fmt: skip
