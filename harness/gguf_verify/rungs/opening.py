"""The request for a verification, and what it opens: a model (or random data) first, then the kernel, of which only the
needed types are compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from ..formats.tensor_types import FORMATS
from ..gguf.matrices import may_be_matrix
from ..gguf.model import Model, open_model
from ..hosts.base import Host
from ..hosts.choice import AUTO, auto_host, host_named
from ..kernels.by_name import further, open_kernel
from ..kernels.families import DEFAULT_KERNEL
from ..kernels.interface import Candidate
from ..results.options import Options
from ..support.progress import Steps
from ..support.threads import beside
from .drawn import Drawn, drawn_run
from .run import Resources, Run, matches
from .session import opened_llama

#: A kernel as a caller names it.
AnyKernel = Candidate | str | Callable[..., Any]


class Further(TypedDict, total=False):
    """The fields of a `Request` beside model, kernel, host, rungs and options."""

    command: str
    source: Path | str | None
    source_text: Path | str | None
    waivers: Path | str | None
    today: date | None
    interrupted_report: bool
    clock: Callable[[], float]
    ray: str | None
    jobs: int | None


@dataclass(frozen=True)
class Request:
    """What is to be verified, and how.

    Args:
        path: the GGUF file, or the first part of a split one; or `Drawn`: random data, if there is no model. Such a
            report says "verified on drawn data".
        kernel: the name of a shipped kernel or family; a foreign kernel, as FILE.py:NAME, as FILE.cu:SYMBOL, or as a
            function or object that declares itself (see `gguf_verify.kernels.foreign`); or a Candidate.
        host: where the kernel runs, unless it is a Candidate: the name of a host, or a Host.
        rungs: the rungs to climb; None: all rungs for what the kernel computes; on random data "blocks" and "layers".
        options: prompt, threads and further choices.
        command: the command line that repeats the run, for the report. If it is "", it is made of the other arguments,
            if possible (a kernel that is a function of another function has no name).
        source: the model that this one was quantized from: the report then has `costs`.
        source_text: a file of UTF-8, whose predictions are compared with the source's; None: the prompt.
        waivers: a file of known mismatches, which do not fail the run until their last day.
        today: the day that waivers are compared with; None: today in UTC.
        interrupted_report: if a KeyboardInterrupt ends the run, return what was found so far instead of raising it;
            `Report.ended_by` and `Report.not_climbed` say what is missing. Before the first rung that is nothing, and
            most of the report's environment is "unknown". A run that was over by then is complete.
        clock: returns the time in seconds, for `Options.budget`.
        ray: the address of a cluster of Ray, whose processes judge tensors and GEMMs, or "local" for processes of this
            machine; None: this process. The report is the same.
        jobs: without Ray, the number of processes of this machine that judge tensors and GEMMs. None: chosen
            automatically: several if a GPU multiplies a large model, and model, kernel and host are given by their
            names; else only this process. The report is the same.
    """

    path: Path | str | Drawn
    kernel: AnyKernel = DEFAULT_KERNEL
    host: Host | str = "auto"
    rungs: Sequence[str] | None = None
    options: Options = field(default_factory=Options)
    command: str = ""
    source: Path | str | None = None
    source_text: Path | str | None = None
    waivers: Path | str | None = None
    today: date | None = None
    interrupted_report: bool = False
    clock: Callable[[], float] = time.monotonic
    ray: str | None = None
    jobs: int | None = None


@contextmanager
def open_run(
    path: Path | str | Drawn, kernel: AnyKernel, host: Host | str, options: Options
) -> Iterator[Run]:  # fmt: skip
    """A run of a kernel on a model or on random data; the arguments are those of `verify`.

    Raises the errors of opening a model and a kernel.
    """

    @contextmanager
    def opened(wanted: frozenset[str] | None) -> Iterator[Candidate]:
        limits = options.threads, options.kernel_time_limit, options.verbose, further(options)
        with ExitStack() as stack:
            with Steps(options.progress) as told:
                found = stack.enter_context(open_kernel(kernel, host, *limits, wanted=wanted, progress=told))
            yield found

    if isinstance(path, Drawn):
        with opened(path.wanted) as multiplier, drawn_run(path, multiplier, options) as run:
            yield run
        return
    with open_model(path) as model:
        if options.budget is None:  # which counts the time that it takes
            model.begin_sha256()
        with _resources(host, options) as resources, opened(types_of(model, options.tensor)) as multiplier:
            yield Run(model, multiplier, options, resources)


@contextmanager
def _resources(host: Host | str, options: Options) -> Iterator[Resources]:
    """The resources of a run. A GPU's library takes about as long to open as a process of llama.cpp, which is therefore
    started beside it."""
    resources, name = Resources(), host_named(host) if isinstance(host, str) else host.name
    if (auto_host()[0] if name == AUTO else name) != "gpu":
        yield resources
        return
    with beside(partial(opened_llama, options)) as llama:
        resources.begin("library", llama)
        try:
            yield resources
        finally:
            resources.close("library")


def types_of(model: Model, pattern: str | None) -> frozenset[str]:
    """The types of blocks of the matrices that a pattern selects."""
    selected = (t for name, t in model.tensors.items() if matches(pattern, name) and may_be_matrix(t))
    return frozenset(t.type.name for t in selected if t.type.name in FORMATS)
