"""With a budget: the calls of the layers rung beside the model's own products, which come last, the cheapest first.

They are other numbers of tokens for each type and shape of weights; and for each type other schedules, and the probes.
When the model's own products have been judged, all of these are recorded as not verified, so that a run that ends early
says so; what is done is removed from there. The time of each is estimated from that of the products before: a product
of the model's own matrices that would take longer than is left is not begun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import structs

from ...llama.evaluations import Evaluation
from ...llama.gemms import Gemm
from ...llama.process import LlamaRefused
from ...results.products import GemmRecord
from ...results.rungs import RungResult
from ...support.progress import under_way
from ..estimates import Estimates
from ..interface import Steps
from ..run import Run
from .call import ACTIVATIONS, OTHER_M
from .task import GemmFound, GemmTask


@dataclass(frozen=True)
class _Work:
    """Calls beside a product.

    Args:
        of: the product that they are made with; its tensor is named where they are not made.
        type: they are those of the type, not those of its shape.
        seconds: estimated.
    """

    of: GemmRecord
    type: bool
    seconds: float

    @property
    def name(self) -> str:
        """The name in reports."""
        if self.type:
            return f"other shapes, values and schedules of {self.of.type}"
        return f"other numbers of tokens of {self.of.type}, N = {self.of.n:,}, K = {self.of.k:,}"


def leave_later(run: Run, result: RungResult) -> None:
    """Record all of it as not verified."""
    for work in _works(run, result):
        result.leave(work.name, run.budget.words, work.of.tensor)


def later(run: Run, result: RungResult) -> Steps:
    """Do what there is time for. Raises EnvironmentFault."""
    from .rung import Merge

    works = [work for work in _works(run, result) if any(left.name == work.name for left in result.unverified)]
    merge = Merge(run, result)
    try:
        with run.bar("other shapes and schedules", len(works), "part") as bar:
            gemms = _captured(run, {work.of.node: work.of for work in works}) if works and not run.budget.spent else {}
            for i, work in enumerate(works):
                gemm = gemms.get((work.of.tensor, work.of.node))
                # probes look at the time between calls; a product of the model is made whole
                if gemm is None or run.budget.spent or (not work.type and work.seconds > run.budget.left):
                    continue
                under_way(bar, work.name)
                task = GemmTask(gemm, 0, False, not work.type, work.type, work.type, merge.known, later=True)
                share = replace(run, budget=run.budget.share_left(len(works) - i))
                found = run.judges.again(share, task)
                result.unverified = [left for left in result.unverified if left.name != work.name]
                merge.join(task, _beside(result, found))
                bar.update()
                yield merge.first_wrong
    except LlamaRefused as error:
        result.leave_all("other shapes", str(error), error.culprit)


def _works(run: Run, result: RungResult) -> list[_Work]:
    """All of it, the cheapest first: with the first correct product of each type and shape, and of each type the
    smallest."""
    if not result.gemms:
        return []
    times, brief = Estimates(run), run.options.probes == "brief"
    times.measured([result])
    of_shape, of_type = dict[tuple[str, int, int], GemmRecord](), dict[str, GemmRecord]()
    for record in sorted(result.gemms, key=lambda r: (bool(r.failures), r.n * r.k)):
        of_shape.setdefault((record.type, record.n, record.k), record)
        of_type.setdefault(record.type, record)
    works = [_Work(r, False, times.product(r.n, r.k, sum(OTHER_M))) for r in of_shape.values()]
    works += [_Work(r, True, times.probes(r.type, brief)) for r in of_type.values()]
    return sorted(works, key=lambda work: work.seconds)


def _captured(run: Run, nodes: dict[str, GemmRecord]) -> dict[tuple[str, str], Gemm]:
    """The products of these nodes in the first pass over the graph. Raises LlamaRefused, EnvironmentFault."""
    found = dict[tuple[str, str], Gemm]()
    session = run.session
    for tokens, position in session.passes():
        for gemm in session.llama.capture(tokens, ACTIVATIONS, position=position):
            if not isinstance(gemm, Evaluation) and gemm.node in nodes and nodes[gemm.node].tensor == gemm.tensor:
                found.setdefault((gemm.tensor, gemm.node), gemm)
        break
    return found


def _beside(result: RungResult, found: GemmFound) -> GemmFound:
    """What was found beside a product. Its record in the result gets the worst utilisation of the further calls."""
    part = found.part
    for record in part.gemms:
        for i, before in enumerate(result.details):
            if isinstance(before, GemmRecord) and (before.tensor, before.node) == (record.tensor, record.node):
                result.details[i] = structs.replace(
                    before, other_m=max(before.other_m, record.other_m), failures=before.failures + record.failures,
                    other_shapes=record.other_shapes if before.other_shapes is None else before.other_shapes,
                )  # fmt: skip
                break
    part.details, part.sampled = [], None
    return found
