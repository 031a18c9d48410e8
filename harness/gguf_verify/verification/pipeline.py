"""A verification from end to end: the module to read first.

    capture → plan → call → judge → merge → report

`verification` opens a model and a kernel, climbs the rungs in order, and reports. A rung that multiplies is a chain of
stages, each a function of the records of the stage before. No stage changes the record of another one. One product of
the layers rung makes these stops, in this order:

 1. `verification.pipeline.verification` opens the run, and makes the report at the end.
 2. `verification.climb.climb` climbs the rungs, and reports failures as soon as they are known.
 3. `rungs.layers.rung.check` is the rung: it joins what the other stages find.
 4. `rungs.pool.Pool.each` has the tasks of the plan judged, here or in another process, and keeps their order.
 5. `rungs.layers.plan.Plan.steps` decides what is checked with each product: a `Step`, which may hold a `GemmTask`.
 6. `rungs.rounds.Round.progress` shows progress in a round, which has the tensors that the budget allows.
 7. `llama.model.LoadedModel.capture` evaluates llama.cpp's graph, and hands over each product: a `Gemm`.
 8. `rungs.layers.task.GemmTask.judge` judges one product, and returns a `GemmFound`.
 9. `rungs.layers.gemm.GemmJudge.run_kernel` calls the kernel, and returns its `Outputs`.
10. `kernels.shipped.ShippedKernel.product` is such a call (each kind of kernel has its own).
11. `rungs.layers.gemm.GemmJudge.judge` judges the outputs and llama.cpp's, some rows at a time.
12. `rungs.exact.ExactProducts.product` computes the exact product of these rows, and its bound: a `Product`.
13. `rungs.judging.judge_output` records how an `Output` compares with it.
14. `semantics.gates.judge` compares them.
15. `rungs.layers.rung.Merge.add` joins the `GemmFound` to the rung's result, in the plan's order.

Progress and early failures are events, which `verification` yields.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from inspect import GEN_CLOSED, getgeneratorstate
from pathlib import Path
from typing import Unpack

from msgspec import structs

from ..costs import Text, measure, open_source, read_text
from ..distributed.judges import judges
from ..gguf.matrices import may_be_matrix
from ..gguf.model import Model
from ..hosts.base import Host
from ..invocation import command_of
from ..kernels.families import DEFAULT_KERNEL
from ..processes.sandbox import sandboxed
from ..results.costs import QuantizationCosts
from ..results.options import Options
from ..results.products import DrawnData
from ..results.report import Report
from ..results.rungs import RungResult
from ..rungs.budget import Budget
from ..rungs.drawn import Drawn, DrawnRun
from ..rungs.explain import WrongOutput
from ..rungs.opening import AnyKernel, Further, Request, open_run
from ..rungs.registry import RUNGS, rungs_for
from ..rungs.run import Run
from ..support.errors import signal_of
from ..support.supported import check_machine
from ..waivers import apply, read_waivers, refuse_everything
from ..waivers import today as current_day
from .cases import check_folder, save_case
from .climb import Climbed, Event, Reported, climb
from .compiling import compile_ahead, runners_ahead, scanners_ahead, steps_ahead
from .environment import completed, environment_of, unknown_environment
from .refusals import check_request, rungs_of


def verify(
    path: Path | str | Drawn, kernel: AnyKernel = DEFAULT_KERNEL, host: Host | str = "auto",
    rungs: Sequence[str] | None = None, options: Options | None = None, *,
    told: Callable[[Event], object] = lambda _: None, **further: Unpack[Further],
) -> Report:  # fmt: skip
    """Verify a GGUF model with a kernel.

    Args:
        path, kernel, host, rungs, options, further: see `Request`.
        told: gets each event of the run.

    The file is read again at the end: `Report.changed` says if it is no longer the one that was verified.

    Raises:
        MalformedFile: the file cannot be read safely.
        NothingToVerify: it holds no matrix.
        EnvironmentFault: there is no such host, or llama.cpp cannot be used at all. A fault that ends a single rung
            (llama.cpp crashes on this model, a build fails) is recorded in that rung's result.
        UsageError: no such kernel or rung, the options select nothing, or the source is another model's.
    """
    events = verification(Request(path, kernel, host, rungs, options or Options(), **further))
    error: BaseException | None = None
    while True:
        try:
            event = next(events) if error is None else events.throw(error)
            error = None
            if isinstance(event, Reported):
                return event.report
            told(event)
        except BaseException as raised:
            if getgeneratorstate(events) == GEN_CLOSED:  # it was raised in the pipeline
                raise
            error = raised


def verification(request: Request) -> Generator[Event]:
    """The events of a verification, which end with the report. Raises the errors of `verify`."""
    start, options = time.perf_counter(), request.options
    check_machine()
    check_request(request)
    text = None if request.source_text is None else read_text(request.source_text)
    waivers = () if request.waivers is None else read_waivers(request.waivers)
    if options.save_case:
        check_folder(Path(options.save_case))
    command = request.command or command_of(request)
    day = request.today or current_day()
    wanted = [name for name in RUNGS if name in (request.rungs or rungs_for())]
    # a call that is made alone has no time limit
    budget = Budget.of(None if options.only_call else options.budget, request.clock)
    found: Climbed | None = None
    environment, costs, changed, over = None, None, None, False
    drawn = DrawnData(seed=options.seed) if isinstance(request.path, Drawn) else None

    def waived(results: Sequence[RungResult]) -> Sequence[RungResult]:
        assert environment is not None
        return apply(Report(environment=environment, rungs=[*results]), waivers, day).rungs

    def save(wrong: WrongOutput) -> str:
        assert environment is not None
        return save_case(Path(options.save_case), wrong, run.model.path, command, environment)

    try:
        with (
            sandboxed(options.sandbox, options.kernel_memory),
            open_run(request.path, request.kernel, request.host, options) as opened,
            judges(opened, request) as pool,
            ExitStack() as stack,
        ):
            run = replace(opened, judges=pool, budget=budget)
            rungs = rungs_of(run, request)
            wanted = [rung.name for rung in rungs]
            matrices = [name for name, tensor in run.model.tensors.items() if may_be_matrix(tensor)]
            looking = [name for name in rungs_for(run.kernel.computes) if name != "tokens"]
            refuse_everything(waivers, run.model.path.name, run.kernel.name, matrices, looking)
            stack.callback(run.close)
            run.selected()
            source = None
            if request.source is not None:
                source = open_source(request.source, run.model)
                stack.callback(source.close)
            if budget.limited:
                begun = request.clock()
                run.file_info()
                # for reading the whole file again at the end
                run = replace(run, budget=budget.reserve(request.clock() - begun))
            if not options.only_call:
                compile_ahead(run)
                stack.enter_context(runners_ahead(run))
                if "bytes" in wanted and not pool.scans:
                    stack.enter_context(scanners_ahead(run))
            drawn = opened.data if isinstance(opened, DrawnRun) else None
            environment = environment_of(run, hashed=bool(options.save_case))
            found = Climbed(rungs)
            try:
                if not options.only_call:
                    stack.enter_context(steps_ahead(run))
                with closing(climb(run, found, save, waived)) as climbing:
                    for found in climbing:
                        if found.event is not None:
                            yield found.event
                if source is not None and not run.model.changed:
                    costs = _costs(run, source, text)
                environment = completed(environment, run)
                changed = run.model.altered()
                over = True
            except KeyboardInterrupt as error:
                if not request.interrupted_report:
                    raise
                environment = completed(environment, run, wait=False)
                if not over:
                    found, over = found.interrupted(signal_of(error)), True
                    if run.model.changed:
                        changed = "its inode says so; it was not read again, because the run was interrupted"
    except KeyboardInterrupt as error:
        if not request.interrupted_report or (found is not None and not over):
            raise
        if found is None:
            environment = unknown_environment(request.path, request.kernel, request.host, options)
            found = Climbed(tuple(RUNGS[name] for name in wanted), ended_by=signal_of(error))
    assert environment is not None
    results = found.in_order
    if options.save_case and results:
        results[-1] = structs.replace(results[-1], notes=[*results[-1].notes, found.case])
    report = Report(
        environment=environment, rungs=results, command=command, changed=changed, costs=costs,
        ended_by=found.ended_by, not_climbed=found.not_climbed, drawn=drawn,
    )  # fmt: skip
    yield Reported(structs.replace(apply(report, waivers, day), seconds=time.perf_counter() - start))


def _costs(run: Run, source: Model, text: Text | None) -> QuantizationCosts:
    """The costs of the quantization, if the budget leaves time for them."""
    if not run.budget.over:
        return measure(run, source, text)
    return QuantizationCosts(source=source.info(), left=(("costs", run.budget.words),))
