"""One verification from end to end: open the file, climb the rungs, say what was found."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .costs import measure, open_source, read_text
from .formats import ELEMENTS, FORMATS, WeightFormat
from .gguf import open_model
from .gguf.matrices import may_be_matrix
from .hosts.base import Host
from .kernels import DEFAULT_KERNEL, Candidate, open_kernel
from .kernels.shipped import ELEMENT_KERNELS
from .llama.backends import BACKENDS
from .results import (
    Environment,
    KernelInfo,
    Options,
    ReferenceInfo,
    Report,
    RungResult,
    Versions,
)
from .rungs import RUNGS, Run, Rung
from .support.errors import EnvironmentFault, HarnessError, NothingToVerify, UsageError
from .support.supported import check_machine
from .support.version import project_version
from .waivers import apply, read_waivers
from .waivers import today as current_day

#: What "verified" says of a kernel that is judged by an oracle of its author.
VERIFIED_BY_ITS_ORACLE = (
    "the kernel computes what an oracle of its author says; how near that is to llama.cpp's product, only the oracle's "
    "distances to the known definitions above tell"
)


def verify(
    path: Path | str,
    kernel: Candidate | str | Callable[..., Any] = DEFAULT_KERNEL,
    host: Host | str = "auto",
    rungs: Sequence[str] = tuple(RUNGS),
    options: Options | None = None,
    command: str = "",
    on_rung: Callable[[Report, RungResult], None] | None = None,
    source: Path | str | None = None,
    source_text: Path | str | None = None,
    waivers: Path | str | None = None,
    today: date | None = None,
) -> Report:
    """Verify a GGUF model with a kernel.

    Args:
        path: the file, or the first part of a split one.
        kernel: the name of a shipped kernel or family; a foreign kernel, as FILE.py:NAME, as FILE.cu:SYMBOL, or as a
            function or object that declares itself (see `gguf_verify.kernels.foreign`); or a Candidate.
        host: where the kernel runs, unless it is a Candidate: the name of a host, or a Host.
        rungs: the rungs to climb.
        options: prompt, threads and further choices.
        command: the command line that repeats the run, for the report.
        on_rung: called after each rung.
        source: the model that this one was quantized from: the report then has `costs`.
        source_text: a file of UTF-8, whose predictions are compared with the source's; None for the prompt.
        waivers: a file of known mismatches, which do not fail the run until their last day.
        today: the day that waivers are compared with; None for today in UTC.

    The file is read again at the end: `Report.changed` says where it is no longer the one that was verified.

    Raises:
        MalformedFile: the file cannot be read safely.
        NothingToVerify: it holds no matrix.
        EnvironmentFault: there is no such host, or llama.cpp cannot be used at all. What breaks off a single rung
            (llama.cpp crashes on this model, a build fails) is recorded in that rung's result.
        UsageError: no such kernel or rung, the options select nothing, or the source is another model's.
    """
    check_machine()
    start = time.perf_counter()
    options = options or Options()
    unknown = [r for r in rungs if r not in RUNGS]
    if unknown or not rungs:
        raise UsageError(f"no rung is called {', '.join(unknown) or '(none given)'}; there are: {', '.join(RUNGS)}")
    if options.reference not in BACKENDS:
        raise UsageError(f"no reference is called {options.reference}; there are: {', '.join(BACKENDS)}")
    if source_text is not None and source is None:
        raise UsageError("a text for costs (--source-text) needs the model's source (--source)")
    text = None if source_text is None else read_text(source_text)
    known = () if waivers is None else read_waivers(waivers)
    opened = open_kernel(kernel, host, options.threads, options.kernel_time_limit, options.verbose)
    with opened as multiplier, open_model(path) as model:
        if options.sanitize and (fault := multiplier.host.check_fault()) is not None:
            raise EnvironmentFault(f"--sanitize: {fault}")
        if not any(map(may_be_matrix, model.tensors.values())):
            held = f"none of its {len(model.tensors)} tensors is a matrix" if model.tensors else "it holds no tensor"
            raise NothingToVerify(f"nothing to verify in {Path(path).name}: {held}")
        run = Run(model, multiplier, options)
        before = None
        try:
            run.selected()
            before = None if source is None else open_source(source, model)
            report = Report(environment=_environment(run), command=command)
            for name, rung in RUNGS.items():
                if name in rungs:
                    result = _climb(run, rung)
                    report.rungs.append(result)
                    if model.changed:
                        result.fault = None  # it came of this, and this is said once
                        break
                    if on_rung is not None:
                        on_rung(report, result)
            if before is not None and not model.changed:
                report.costs = measure(run, before, text)
            report.changed = model.altered()
        finally:
            run.close()
            if before is not None:
                before.close()
    apply(report, known, today or current_day())
    report.seconds = time.perf_counter() - start
    return report


def _climb(run: Run, rung: Rung) -> RungResult:
    """One rung. Where it is broken off, the result says why, and what other rungs found is not lost."""
    try:
        return rung.climb(run)
    except HarnessError as error:
        if not isinstance(error, EnvironmentFault) and not run.model.changed:
            raise
        run.close()  # the next rung gets a fresh process
        return RungResult(
            name=rung.name,
            question=rung.question,
            substance=rung.substance,
            fault=str(error),
            fault_culprit=error.culprit if isinstance(error, EnvironmentFault) else "file",
        )


def _environment(run: Run) -> Environment:
    model, kernel, versions = run.model, run.kernel, run.versions
    return Environment(
        versions=Versions(
            gguf_verify=project_version(), python=platform.python_version(), numpy=np.__version__,
            gguf=metadata.version("gguf"), llama_cpp_python=versions["llama_cpp_python"],
            llama_cpp=versions["llama_cpp"], ggml=versions["ggml"], llama_build=versions["system"],
            platform=f"{platform.system()} {platform.machine()}", byte_order=sys.byteorder,
        ),
        host=kernel.runs_on(),
        kernel=KernelInfo(
            name=kernel.name, definition=kernel.semantics, judged_by=kernel.judged_by,
            verified_means=VERIFIED_BY_ITS_ORACLE if kernel.definition.oracle is not None else None,
            order=kernel.order_in_words, covers=tuple(name for name, fmt in FORMATS.items() if kernel.covers(fmt)),
            element_kernels=_element_kernels(run), element_host=kernel.host.info(),
        ),
        file=model.info(),
        reference=ReferenceInfo(where=run.backend.describe(), definitions=_llama_definitions(run)),
        options=run.options,
    )  # fmt: skip


def _llama_definitions(run: Run) -> dict[str, str]:
    """Type → the definitions of llama.cpp's products with its matrices, in words."""
    held = {t.type.name for t in run.model.tensors.values() if may_be_matrix(t)}
    known: list[WeightFormat] = [*FORMATS.values(), *ELEMENTS.values()]
    return {fmt.name: run.backend.definitions_in_words(fmt) for fmt in known if fmt.name in held}


def _element_kernels(run: Run) -> dict[str, str]:
    """Type → the kernel of its matrices, for types that are not quantized and of which the file holds matrices."""
    kinds = {t.type.weights for t in run.model.tensors.values() if may_be_matrix(t) and not t.type.quantized}
    return {fmt.name: ELEMENT_KERNELS[fmt.name].name for fmt in ELEMENTS.values() if fmt in kinds}
