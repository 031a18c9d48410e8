"""`gguf-verify backend --fused`: nodes that are computed together, on the CPU, on llvmpipe, and on a device that is
played, which fuses wrong, or right in other bits."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gguf_verify.backend_results import GraphOptions, GraphReport
from gguf_verify.llama.answers import RecordedNode
from gguf_verify.llama.evaluations import Evaluation, FusedEnd, FusedOutput
from gguf_verify.llama.library import Llama
from gguf_verify.llama.model import LoadedModel
from gguf_verify.llama.worker.fused_tap import Record, _Part
from gguf_verify.support.errors import LlamaFault
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge, parameters
from gguf_verify_graph.verification import verify_graph
from gguf_verify_graph.verification.fusing import Fusing, judge_group
from tests.support import needs
from tests.support.architectures import ARCHITECTURES
from tests.support.graph_records import graph
from tests.support.processes import end_kept
from tests.support.tools import FIXTURES

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
#: A node, and the one before it, by themselves → what the node's output is in a window with both.
Alter = Callable[[Node, Node], np.ndarray]


def fused(path: Any = Q4_0, **options: Any) -> GraphReport:
    usual: dict[str, Any] = {"prompt": "The import", "n_predict": 0, "threads": 1, "progress": False, "fused": True}
    return verify_graph(path, GraphOptions(**(usual | options)))


def test_the_cpu_changes_no_bits() -> None:
    report = fused()
    assert report.verdict == "verified", (report.wrong, report.not_judged, report.fault)
    (found,) = report.varying
    assert (found.slot, found.node, found.fused) == ("nodes fused", "", ())
    assert found.compared > 80
    assert report.evaluations[-1].endswith("nodes fused")


@pytest.mark.parametrize("name", ["bert", "t5", "qwen3moe", "mamba", "gpt-oss"])
def test_other_architectures(llama: Llama, tmp_path: Any, name: str) -> None:
    report = fused(ARCHITECTURES[name](llama, tmp_path / f"{name}.gguf"))
    assert report.verdict == "verified", (report.wrong, report.not_judged, report.fault)
    assert report.varying[0].fused == ()


@pytest.mark.needs("vulkan")
@pytest.mark.parametrize("off", [False, True])
def test_nodes_fused_by_vulkan_are_reported(monkeypatch: pytest.MonkeyPatch, off: bool) -> None:
    if off:
        monkeypatch.setenv("GGML_VK_DISABLE_FUSION", "1")
    report = fused(device="Vulkan0", llama=str(needs.vulkan()))
    assert report.verdict == "verified", (report.wrong, report.not_judged, report.fault)
    (found,) = report.varying
    assert found.fused == (() if off else ("ROPE + SET_ROWS (3)",))


@pytest.mark.needs("vulkan")
def test_outputs_read_by_another_device_are_compared_in_time(llama: Llama, tmp_path: Any) -> None:
    """llama.cpp's Vulkan backend leaves the scan to the CPU: what that reads is copied, and its place used again."""
    model = ARCHITECTURES["mamba"](llama, tmp_path / "mamba.gguf")
    report = fused(model, device="Vulkan0", llama=str(needs.vulkan()))
    assert report.verdict == "verified", (report.wrong, report.not_judged, report.fault)
    assert any(each.operation == "SSM_SCAN" and each.fell_back for each in report.operations)


def test_no_window_has_two_devices_or_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, graphs = ["A"] * 20 + ["B"] + ["A"] * 20, [1] * 30 + [2] * 11
    nodes = [
        RecordedNode("ADD", "n", device, [i] if i else [], i + 2 if i < 40 else 0, of)
        for i, (device, of) in enumerate(zip(devices, graphs, strict=True))
    ]
    asked: list[tuple[int, int]] = []
    compare = Fusing(None, [], lambda _: None)
    compare._nodes = nodes

    def evaluate(windows: list[tuple[int, int]], back: bool = True) -> list[FusedOutput]:
        asked.extend(windows)
        return []

    monkeypatch.setattr(compare, "_evaluate", evaluate)
    assert compare._differences() == []
    places = [*zip(devices, graphs, strict=True)]
    assert all(len({*places[first - 1 : last]}) == 1 for first, last in asked)
    assert {number for first, last in asked for number in range(first, last + 1)} == {*range(1, 42)}
    assert max(last - first for first, last in asked) == 15


def test_windows_find_differences_and_restore_outputs(llama: Llama) -> None:
    """With the windows of other tokens than those of the record, every window leaves other bits, until they are
    replaced: the graph ends as the record does."""
    model = llama.model
    model.open_on(Q4_0, 1, "CPU")
    model.make_context(8, 4)
    nodes, recorded = model.record([5, 6, 7, 8])
    n = len(nodes)
    same = list(model.windows([5, 6, 7, 8], [(1, n)]))
    assert [type(each) for each in same] == [FusedEnd]
    *found, end = model.windows([9, 10, 11, 12], [(i, i) for i in range(1, n + 1)])
    numbers = {each.number for each in found if isinstance(each, FusedOutput)}
    embeddings = [i for i, node in enumerate(nodes, 1) if not node.reads]
    assert numbers <= {*embeddings}  # all others have the inputs of the record
    assert numbers
    assert end.compared == n
    assert np.array_equal(end.evaluation.logits, recorded.logits)


def test_a_crash_in_a_window_reports_its_nodes() -> None:
    """It waits for an answer behind the window that leaves the first other output."""
    with Llama() as running:
        model = running.model
        model.open_on(Q4_0, 1, "CPU")
        model.make_context(8, 4)
        nodes, _ = model.record([5, 6, 7, 8])
        found = model.windows([9, 10, 11, 12], [(1, 12), (13, len(nodes))])
        next(found)
        end_kept(running.pid, signal.SIGSEGV)
        with pytest.raises(LlamaFault, match=rf"died in evaluate at {nodes[11].op.split()[0]} .* \(SIGSEGV\)"):
            next(found)


def test_only_outputs_that_are_read_are_compared() -> None:
    """As of ARGSORT, whose first indices alone are used."""
    first_two = _Part(0, (1, 1, 3, 2, 4), (48, 48, 16, 4, 1))
    record = Record([np.zeros(48, np.uint8)], uses=[3], views=[[(2, _Part(0, (12, 4), (4, 1))), (3, first_two)]])
    assert record.read_of(1, 1).all()
    rows = record.read_of(1, 2).reshape(3, 16)
    assert rows[:, :8].all()
    assert not rows[:, 8:].any()
    assert Record([np.zeros(8, np.uint8)], uses=[0], views=[[]]).read_of(1, 1).all()


def test_a_graph_reads_no_nodes_of_another(llama: Llama, tmp_path: Any) -> None:
    """A decoder's tensors lie where its encoder's were, some of its inputs where a node was."""
    model = llama.model
    model.open_on(ARCHITECTURES["t5"](llama, tmp_path / "t5.gguf"), 1, "CPU")
    model.make_context(8, 4)
    model.read_source([5, 6, 7])
    nodes, _ = model.record([5, 6, 7, 8])
    assert {node.graph for node in nodes} == {1, 2}
    assert all(nodes[read - 1].graph == node.graph for node in nodes for read in node.reads)


@pytest.mark.parametrize("rest", [False, True])
def test_propagated_differences_are_reported_at_their_origin(monkeypatch: pytest.MonkeyPatch, rest: bool) -> None:
    """Of nodes 1 to 4, nodes 1 and 2 together leave other bits, which 3 and 4 carry on; with `rest`, 3 and 4 together
    have other bits by themselves, too, so that they explain nothing."""
    nodes = [RecordedNode("MUL_MAT", "n", "A", [i] if i else [], i + 2 if i < 3 else 0, 1) for i in range(4)]
    other, carried = np.ones(4, np.uint8), np.full(4, 2, np.uint8)

    def evaluate(windows: list[tuple[int, int]], back: bool = True) -> list[FusedOutput]:
        made = [FusedOutput(2, (1, 2), other)] * ((1, 2) in windows)
        made += [FusedOutput(4, (3, 4), carried)] * ((3, 4) in windows and (rest or not back))
        return made + [FusedOutput(4, (4, 4), other)] * (windows == [(4, 4)])

    compare = Fusing(None, [], lambda _: None)
    compare._nodes = nodes
    monkeypatch.setattr(compare, "_evaluate", evaluate)
    (found,) = compare._origins(FusedOutput(4, (1, 4), carried))
    assert (found.number, found.window) == ((4, (1, 4)) if rest else (2, (1, 2)))


def test_outputs_after_a_window() -> None:
    """Node 1 is read by 2 alone, 2 by 4, 3 by nothing, 4 by 5, and behind the graph."""
    record = Record(uses=[2, 4, 0, 5, 0], kept={4})
    assert record.left_by(1, 2) == [2]
    assert record.left_by(1, 3) == [2, 3]
    assert record.left_by(1, 4) == [3, 4]
    assert record.left_by(4, 5) == [4, 5]


# ---- a device that is played -----------------------------------------------------------------------------------------


def played(monkeypatch: pytest.MonkeyPatch, op: str, alter: Alter) -> None:
    """The first node of an operation has another output in every window that it does not begin."""
    real = LoadedModel.windows
    at: dict[str, Any] = {}

    def windows(
        self: LoadedModel, tokens: list[int], asked: Sequence[tuple[int, int]], back: bool = True
    ) -> Iterator[FusedOutput | FusedEnd]:
        if not at:
            seen = list(self.nodes(tokens, weights))
            node = next(g for g in seen if not isinstance(g, Evaluation) and g.operation == op)
            at.update(number=node.number, data=alter(node.node, seen[node.number - 2].node))
            self.record(tokens)
        for window in asked:
            if window[0] < at["number"] <= window[1]:
                yield FusedOutput(at["number"], window, at["data"].reshape(-1).view(np.uint8))
        yield from real(self, tokens, asked, back)

    from gguf_verify.gguf.model import open_model

    with open_model(Q4_0) as model:
        rows = {name: np.array(tensor.raw) for name, tensor in model.tensors.items()}
    weights = rows.get
    monkeypatch.setattr(LoadedModel, "windows", windows)


def off(node: Node, _before: Node) -> np.ndarray:
    """By a thousandth."""
    return (node.output.values * 1.001).astype(np.float32)


def unrounded(node: Node, before: Node) -> np.ndarray:
    """A product with a norm that is not rounded."""
    x, weights = before.source(0).values, node.source(1).values
    return (x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + before.number(0)) * weights).astype(np.float32)


def test_a_wrong_fused_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, "MUL", off)
    report = fused()
    assert (report.verdict, report.exit_code, report.wrong_nodes) == ("mismatch", 1, 1)
    (wrong,) = report.wrong
    assert wrong.operation == "RMS_NORM + MUL, fused"
    assert wrong.evaluation.endswith("tokens, nodes fused")
    assert wrong.definition == "MUL of RMS_NORM before it is rounded"
    (found,) = report.varying
    assert (found.operation, found.node) == ("RMS_NORM + MUL", wrong.node)


def test_other_bits_within_the_definition_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, "MUL", unrounded)
    report = fused()
    assert report.verdict == "verified", (report.wrong, report.not_judged, report.fault)
    assert report.varying[0].operation == "RMS_NORM + MUL"
    assert [each.nodes for each in report.operations if each.operation == "RMS_NORM + MUL, fused"] == [1]


def test_unknown_movements_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, "GLU SWIGLU", off)
    report = fused()
    assert (report.verdict, report.exit_code) == ("not everything verified", 5)
    (left,) = report.not_judged
    assert left.operation == "MUL_MAT + GLU SWIGLU, fused"
    assert left.why == "how far GLU SWIGLU moves where MUL_MAT is not rounded before it"


def test_other_logits_of_the_whole_graph_are_not_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LoadedModel.evaluate

    def evaluate(self: LoadedModel, tokens: list[int], first: int = 0) -> Evaluation:
        made = real(self, tokens, first)
        return replace(made, logits=made.logits + 1)

    monkeypatch.setattr(LoadedModel, "evaluate", evaluate)
    report = fused()
    assert report.verdict == "not everything verified"
    assert [each.operation for each in report.not_judged] == ["the graph evaluated at once"]


#: Of two nodes, the second reads the first.
PAIR: list[list[int]] = [[], [0]]

# ---- the bound -------------------------------------------------------------------------------------------------------


def chain(rng: np.random.Generator, last: str) -> tuple[list[Node], np.ndarray]:
    """A norm, what is made of it by itself, and the same of the norm before it is rounded, float64."""
    x = Operand.of(rng.standard_normal((1, 1, 7, 64)).astype(np.float32) * 3)
    weights = Operand.of(rng.standard_normal((1, 1, 1, 64)).astype(np.float32))
    values = x.values
    exact = values / np.sqrt((values**2).mean(axis=-1, keepdims=True) + 1e-6)
    norm = Node("RMS_NORM", (x,), Operand.of(exact.astype(np.float32)), parameters(1e-6))
    of = {"MUL": np.multiply, "ADD": np.add}[last]
    y = of(norm.output.data, weights.data)
    node = Node(last, (norm.output, weights), Operand.of(y))
    assert judge(norm).passed
    assert judge(node).passed
    return [norm, node], of(exact, weights.values)


@pytest.mark.parametrize("last", ["MUL", "ADD"])
def test_the_bound_of_a_group(last: str) -> None:
    """What is not rounded in between passes; 16 times its error does not, in one element."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        nodes, unrounded = chain(rng, last)
        made = unrounded.astype(np.float32)
        right = replace(nodes[-1], output=Operand.of(made))
        judged = judge_group(nodes, PAIR, right)
        assert judged.passed
        assert judged.utilisation > 1 / 32
        largest = np.abs(made - nodes[-1].output.values).max()
        made[0, 0, 3, 5] += 16 * largest
        assert judge_group(nodes, PAIR, replace(nodes[-1], output=Operand.of(made))).wrong == 1


def test_groups_of_unknown_movement() -> None:
    nodes, _ = chain(np.random.default_rng(4), "MUL")
    other = replace(nodes[1], op="RMS_NORM", sources=(nodes[0].output,), parameters=parameters(1e-6))
    with pytest.raises(NoDefinition, match="how far RMS_NORM moves"):
        judge_group([nodes[0], other], PAIR, other)
    turned = replace(nodes[1], sources=(nodes[0].output.permuted(1, 0, 2, 3), nodes[0].output.permuted(1, 0, 2, 3)))
    with pytest.raises(NoDefinition, match="in another order"):
        judge_group([nodes[0], turned], PAIR, turned)


def test_a_group_of_several_paths() -> None:
    """Weights of experts: softmax, the chosen ones, and these divided by their sum, all but the last not rounded. One
    that is off by 16 times the error is found."""
    rng = np.random.default_rng(5)
    x = Operand.of(rng.standard_normal((1, 1, 5, 8)).astype(np.float32) * 3)
    exact = np.exp(x.values - x.values.max(axis=-1, keepdims=True))
    exact /= exact.sum(axis=-1, keepdims=True)
    softmax = Node("SOFT_MAX", (x,), Operand.of(exact.astype(np.float32)), parameters(1.0, 0.0))
    ids = np.argsort(-exact[0, 0], axis=-1)[:, :3]
    table = Operand.of(softmax.output.data.reshape(1, 5, 8, 1))
    picked = np.take_along_axis(softmax.output.data[0, 0], ids, axis=-1).reshape(1, 5, 3, 1)
    rows = Node("GET_ROWS", (table, Operand.of(ids.astype(np.int32)[None, None])), Operand.of(picked))
    flat = Operand.of(picked.reshape(1, 1, 5, 3))
    sums = Node("SUM_ROWS", (flat,), Operand.of(flat.data.astype(np.float64).sum(axis=-1, keepdims=True).astype("<f4")))
    divided = Node("DIV", (flat, sums.output), Operand.of(flat.data / sums.output.data))
    nodes, reads = [softmax, rows, sums, divided], [[], [0], [1], [1, 2]]
    assert all(judge(node).passed for node in nodes)
    unrounded = np.take_along_axis(exact[0, 0], ids, axis=-1)[None, None]
    made = (unrounded / unrounded.sum(axis=-1, keepdims=True)).astype(np.float32)
    judged = judge_group(nodes, reads, replace(divided, output=Operand.of(made)))
    assert judged.passed
    made[0, 0, 2, 1] *= 1 + 2.0**-18
    assert judge_group(nodes, reads, replace(divided, output=Operand.of(made))).wrong == 1


def test_reports_list_fused_nodes() -> None:
    from gguf_verify.backend_results import Varying
    from gguf_verify.report import graph_words

    usual: dict[str, Any] = {"micro_batch": 6, "against": 6, "token": -1, "compared": 120, "slot": "nodes fused"}
    none = Varying(operation="", node="", device="", fused=("ROPE + SET_ROWS (3)",), **usual)
    some = Varying(operation="RMS_NORM + MUL", node="norm-0", device="Vulkan0", fused=(), **usual)
    assert graph(varying=(none,)).verdict == "verified"
    assert graph_words.varying(none) == (
        "same bits", "nodes fused: in all 120 outputs; fused: ROPE + SET_ROWS (3)",
    )  # fmt: skip
    assert graph_words.varying(some) == (
        "other bits", "nodes fused: first at RMS_NORM + MUL norm-0 on Vulkan0 (of 120 outputs that were compared)",
    )  # fmt: skip
