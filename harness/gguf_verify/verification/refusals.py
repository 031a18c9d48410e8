"""Requests that are refused before a rung is climbed."""

from __future__ import annotations

from ..gguf.matrices import may_be_matrix
from ..rungs.drawn import DRAWN_RUNGS, Drawn, check_reference
from ..rungs.interface import Rung
from ..rungs.opening import Request
from ..rungs.registry import asked_rungs, known_rungs
from ..rungs.run import Run
from ..support.durations import is_duration
from ..support.errors import EnvironmentFault, NothingToVerify, UsageError
from ..support.text import counted, printable


def check_request(request: Request) -> None:
    """Check what does not depend on the model or the kernel. Raises UsageError."""
    options, rungs = request.options, request.rungs
    if options.budget is not None and not is_duration(options.budget):
        raise UsageError(f"a budget is a time above 0, not {options.budget:g} seconds")
    if rungs is not None:
        known_rungs(rungs)
    if isinstance(request.path, Drawn):
        if left := [name for name in rungs or () if name not in DRAWN_RUNGS]:
            raise UsageError(f"the {left[0]} rung needs a model; on random data there are: {', '.join(DRAWN_RUNGS)}")
        if (request.source, request.waivers, options.save_case) != (None, None, ""):
            raise UsageError("a source, waivers and a saved case belong to a model, not to random data")
    check_reference(request.path, options)
    if request.source_text is not None and request.source is None:
        raise UsageError("a text for costs needs the model's source")
    if options.only_call and (rungs is None or len(rungs) != 1):
        raise UsageError("--only-call needs the rung of the call: --rungs RUNG, as a report prints it")


def rungs_of(run: Run, request: Request) -> list[Rung]:
    """The rungs to climb. Raises UsageError, EnvironmentFault, NothingToVerify."""
    rungs = asked_rungs(request.rungs, run.kernel.computes)
    if isinstance(request.path, Drawn):
        rungs = [rung for rung in rungs if rung.name in DRAWN_RUNGS]
    if run.options.sanitize and (fault := run.kernel.check_fault()) is not None:
        raise EnvironmentFault(f"--sanitize: {fault}")
    if not any(map(may_be_matrix, run.model.tensors.values())):
        n = len(run.model.tensors)
        held = f"it holds {counted(n, 'tensors')}, but no matrix" if n else "it holds no tensor"
        raise NothingToVerify(f"nothing to verify in {printable(run.model.path.name)}: {held}", "nothing-to-verify")
    return rungs
