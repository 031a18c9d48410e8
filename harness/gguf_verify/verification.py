"""One verification from end to end: open the file, climb the rungs, say what was found."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .cases import Keeper
from .formats import ELEMENTS, FORMATS, WeightFormat
from .gguf import open_model
from .gguf.matrices import may_be_matrix
from .hosts.base import Host
from .invocation import command_of
from .kernels import DEFAULT_KERNEL, Candidate, open_kernel
from .kernels.shipped import ELEMENT_KERNELS
from .llama.backends import BACKENDS
from .results import (
    Environment,
    FileInfo,
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
) -> Report:
    """Verify a GGUF model with a kernel.

    Args:
        path: the file, or the first part of a split one.
        kernel: the name of a shipped kernel or family; a foreign kernel, as FILE.py:NAME, as FILE.cu:SYMBOL, or as a
            function or object that declares itself (see `gguf_verify.kernels.foreign`); or a Candidate.
        host: where the kernel runs, unless it is a Candidate: the name of a host, or a Host.
        rungs: the rungs to climb.
        options: prompt, threads and further choices.
        command: the command line that repeats the run, for the report; where it is "", it is made of the other
            arguments, if it can be (a kernel that is a function of another function cannot be named).
        on_rung: called after each rung.

    The file is read again at the end: `Report.changed` says where it is no longer the one that was verified.

    Raises:
        MalformedFile: the file cannot be read safely.
        NothingToVerify: it holds no matrix.
        EnvironmentFault: there is no such host, or llama.cpp cannot be used at all. What breaks off a single rung
            (llama.cpp crashes on this model, a build fails) is recorded in that rung's result.
        UsageError: no such kernel or rung, or the options select nothing.
    """
    check_machine()
    start = time.perf_counter()
    options = options or Options()
    command = command or command_of(path, kernel, host, rungs, options)
    unknown = [r for r in rungs if r not in RUNGS]
    if unknown or not rungs:
        raise UsageError(f"no rung is called {', '.join(unknown) or '(none given)'}; there are: {', '.join(RUNGS)}")
    if options.reference not in BACKENDS:
        raise UsageError(f"no reference is called {options.reference}; there are: {', '.join(BACKENDS)}")
    if options.only_call and len(rungs) != 1:
        raise UsageError("--only-call needs the rung of the call: --rungs RUNG, as a report prints it")
    keeper = Keeper(Path(options.save_case), str(path), command) if options.save_case else None
    opened = open_kernel(kernel, host, options.threads, options.kernel_time_limit, options.verbose)
    with opened as multiplier, open_model(path) as model:
        if options.sanitize and (fault := multiplier.host.check_fault()) is not None:
            raise EnvironmentFault(f"--sanitize: {fault}")
        if not any(map(may_be_matrix, model.tensors.values())):
            held = f"none of its {len(model.tensors)} tensors is a matrix" if model.tensors else "it holds no tensor"
            raise NothingToVerify(f"nothing to verify in {Path(path).name}: {held}")
        run = Run(model, multiplier, options, None if keeper is None else keeper.keep)
        try:
            run.selected()
            report = Report(environment=_environment(run), command=command)
            if keeper is not None:
                keeper.environment = report.environment
            for name, rung in RUNGS.items():
                if name in rungs:
                    result = _climb(run, rung)
                    report.rungs.append(result)
                    if model.changed:
                        result.fault = None  # it came of this, and this is said once
                        break
                    if on_rung is not None:
                        on_rung(report, result)
            if keeper is not None and report.rungs:
                report.rungs[-1].note(keeper.words)
            report.changed = model.altered()
        finally:
            run.close()
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
        file=FileInfo(
            path=str(model.path), size=model.size, sha256=tuple(model.sha256()), architecture=model.architecture or "",
            tensor_types=dict(Counter(t.type.name for t in model.tensors.values())),
        ),
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
