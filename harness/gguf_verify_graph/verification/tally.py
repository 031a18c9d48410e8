"""Results of a graph's nodes: totals by operation, type and device, and each wrong node with its inputs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from gguf_verify.backend_results import MAX_WRONG, NotJudged, OperationResult, WrongNode
from gguf_verify.llama.graph import GraphNode
from gguf_verify.support.text import printable

from ..operations import OPERATIONS, Judged, Node, NoDefinition, judge
from .steps import described

#: Operations that are counted separately by the type of a source: operation → index of the source.
_BY_SOURCE = {"MUL_MAT": 0, "MUL_MAT_ID": 0, "GET_ROWS": 0, "FLASH_ATTN_EXT": 1, "OUT_PROD": 0}
#: Exceptions of a definition on a node that its author did not foresee. The node is reported, and others are judged.
_FAULTS = (ArithmeticError, AttributeError, IndexError, KeyError, MemoryError, TypeError, ValueError)


class Tally:
    """Results by operation and device.

    Args:
        device: the requested device.
        only: judge only nodes of this name; "" for all.
    """

    def __init__(self, device: str, only: str) -> None:
        self._device, self._only = device, only
        self._found: dict[tuple[str, str], OperationResult] = {}
        self._left: dict[tuple[str, str, str], int] = {}
        self.wrong: list[WrongNode] = []
        self.wrong_nodes = 0

    @property
    def operations(self) -> tuple[OperationResult, ...]:
        """Results in the order of first occurrence."""
        return tuple(self._found.values())

    @property
    def not_judged(self) -> tuple[NotJudged, ...]:
        """Nodes that were not judged, in the order of first occurrence."""
        return tuple(
            NotJudged(operation=operation, device=device, why=why, nodes=n)
            for (operation, device, why), n in self._left.items()
        )

    def add(self, given: GraphNode, evaluation: str) -> bool:
        """Judge a node by its definition; returns False if it is wrong."""
        if self._only and given.name != self._only:
            return True
        node = given.node
        if node is None:
            self.leave(given.operation, given.device, given.why)
            return True
        return self.judge_by(given, named_by_type(node), evaluation, lambda: (node, judge(node)))

    def judge_by(
        self, given: GraphNode | None, named: str, evaluation: str, judging: Callable[[], tuple[Node, Judged]]
    ) -> bool:
        """Judge a node, or a group under one name; returns False if it is wrong.

        Args:
            judging: returns the judged node and the judgement.
        """
        device = "" if given is None else printable(given.device, 100)
        try:
            node, judged = judging()
        except NoDefinition as error:
            self.leave(named, device, str(error))
            return True
        except _FAULTS as error:
            self.leave(named, device, f"internal error, please report it: {type(error).__name__}: {error}")
            return True
        assert given is not None
        wrong = None if judged.passed else _wrong(given, node, named, judged, evaluation)
        self._count(named, device, judged, wrong)
        return wrong is None

    def leave(self, operation: str, device: str, why: str) -> None:
        """Record something that was not judged."""
        key = printable(operation, 100), printable(device, 100), printable(why, 300)
        self._left[key] = self._left.get(key, 0) + 1

    def _count(self, operation: str, device: str, judged: Judged, wrong: WrongNode | None) -> None:
        key = operation, device
        old = self._found.get(key) or OperationResult(
            operation=operation,
            device=device,
            fell_back=device != self._device,
            nodes=0,
            elements=0,
            definitions=(),
            utilisation=0.0,
            exact=True,
            ambiguous=0,
            wrong=0,
            first=None,
        )
        known = old.definitions if judged.definition in old.definitions else (*old.definitions, judged.definition)
        self._found[key] = replace(
            old,
            nodes=old.nodes + 1,
            elements=old.elements + judged.elements,
            definitions=known,
            utilisation=max(old.utilisation, judged.utilisation),
            exact=old.exact and judged.by_bits,
            ambiguous=old.ambiguous + judged.ambiguous,
            wrong=old.wrong + (wrong is not None),
            first=old.first or wrong,
        )
        if wrong is not None:
            self.wrong_nodes += 1
            if len(self.wrong) < MAX_WRONG:
                self.wrong.append(wrong)


def named_by_type(node: Node) -> str:
    """Return the operation's name with the type that decides how it is computed: of the matrix, the table, the cache or
    the result."""
    at = _BY_SOURCE.get(node.op)
    operand = node.output if at is None else node.optional(at)
    kind = "" if operand is None or (at is None and operand.type == "F32") else f" {operand.type}"
    return printable(f"{node.operation}{kind}", 100)


def _wrong(given: GraphNode, node: Node, named: str, judged: Judged, evaluation: str) -> WrongNode:
    axes = OPERATIONS[node.op].axes
    place = [f"{axis} {at}" for axis, at, n in zip(axes, judged.place, node.output.shape, strict=True) if n > 1]
    shape = node.output.shape
    spans = [_span(axis, *of, n) for axis, of, n in zip(axes, judged.extent, shape, strict=False) if n > 1]
    inputs = [f"src[{i}] {described(s)}" for i, s in enumerate(node.sources) if s is not None]
    return WrongNode(
        operation=named,
        node=printable(given.name, 100),
        device=printable(given.device, 100),
        number=given.number,
        evaluation=evaluation,
        definition=judged.definition,
        inputs=tuple(inputs),
        output=described(node.output),
        place=", ".join(place),
        got=judged.got,
        expected=judged.expected,
        tolerance=judged.tolerance,
        utilisation=judged.utilisation,
        wrong=judged.wrong,
        elements=judged.elements,
        extent="; ".join(spans),
    )


def _span(axis: str, first: int, last: int, count: int, n: int) -> str:
    """Describe the range of wrong elements on an axis of n indices."""
    if count == 1:
        return f"{axis} {first}"
    if count == n:
        return f"all {n:,} {axis}s"
    return f"{axis}s {first} to {last}" + ("" if count == last - first + 1 else f", {count:,} of them")
