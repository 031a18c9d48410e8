"""One verification from end to end: open the file, climb the rungs, say what was found."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .formats import ELEMENTS, FORMATS, WeightFormat
from .gguf import Model, open_model
from .hosts.base import Host
from .kernels import DEFAULT_KERNEL, Candidate, open_kernel
from .kernels.shipped import ELEMENT_KERNELS
from .rungs import RUNGS, Options, Run, RungResult
from .rungs.run import REFERENCES, may_be_matrix
from .semantics.cuda import MMVQ_TOKENS, NoDefinition
from .support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_VERIFIED,
    EnvironmentFault,
    NothingToVerify,
    UsageError,
)
from .support.version import project_version

#: What a pass of a kernel says that is judged by an oracle of its author.
VERIFIED_BY_ITS_ORACLE = (
    "the kernel computes what an oracle of its author says; that it is llama.cpp's product is said no further than by "
    "the oracle's distances to the known definitions above"
)


@dataclass
class Report:
    """What a run found.

    Args:
        header: everything that could matter to repeat it: versions, host, file, sha256, seed.
        rungs: the rungs that were climbed, in order.
        command: the command line that repeats the run.
        seconds: of the whole run.
    """

    header: dict[str, Any]
    rungs: list[RungResult] = field(default_factory=list)
    command: str = ""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """1 for any mismatch; else 3 where the environment broke a rung off; else 5 where something is unverified."""
        verdicts = [r.verdict for r in self.rungs]
        if "failed" in verdicts:
            return EXIT_MISMATCH
        if any(r.fault for r in self.rungs):
            return EXIT_ENVIRONMENT
        return EXIT_VERIFIED if verdicts and set(verdicts) == {"passed"} else EXIT_UNVERIFIED

    @property
    def verdict(self) -> str:
        return {
            EXIT_VERIFIED: "verified",
            EXIT_MISMATCH: "mismatch",
            EXIT_ENVIRONMENT: "broken off",
            EXIT_UNVERIFIED: "not everything verified",
        }[self.exit_code]


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
        kernel: the name of a shipped kernel or family; a foreign one: FILE.py:NAME, or a function or object, as
            `gguf_verify.kernels.foreign.api` says, FILE.cu:SYMBOL as `gguf_verify.kernels.foreign.cuda` says; or a
            Candidate.
        host: where the kernel runs if it is no Candidate: auto, gpu, cpu, or a Host.
        rungs: which rungs to climb.
        options: prompt, threads and the like.
        command: for the report: what repeats it.
        on_rung: called after each rung.

    Raises:
        MalformedFile: the file cannot be read safely.
        NothingToVerify: it holds no matrix.
        EnvironmentFault: no such host, or llama.cpp cannot be used at all; what breaks off one rung (llama.cpp dies on
            this model, a build fails) is recorded in its result.
        UsageError: no such kernel or rung, or the options select nothing.
    """
    start = time.perf_counter()
    options = options or Options()
    unknown = [r for r in rungs if r not in RUNGS]
    if unknown or not rungs:
        raise UsageError(f"no rung is called {', '.join(unknown) or '(none given)'}; there are: {', '.join(RUNGS)}")
    if options.reference not in REFERENCES:
        raise UsageError(f"no reference is called {options.reference}; there are: {', '.join(REFERENCES)}")
    opened = open_kernel(kernel, host, options.threads, options.kernel_time_limit, options.verbose)
    with opened as multiplier, open_model(path) as model:
        if not any(map(may_be_matrix, model.tensors.values())):
            held = f"none of its {len(model.tensors)} tensors is a matrix" if model.tensors else "it holds no tensor"
            raise NothingToVerify(f"nothing to verify in {Path(path).name}: {held}")
        run = Run(model, multiplier, options)
        try:
            run.selected()
            report = Report(_header(run), command=command)
            for name in RUNGS:
                if name in rungs:
                    result = _climb(run, name)
                    report.rungs.append(result)
                    if on_rung is not None:
                        on_rung(report, result)
        finally:
            run.close()
    report.seconds = time.perf_counter() - start
    return report


def _climb(run: Run, name: str) -> RungResult:
    """One rung. Where the environment breaks it off, the record says so: what other rungs found is not lost."""
    try:
        return RUNGS[name](run)
    except EnvironmentFault as error:
        run.close()  # a fresh process for the next rung
        return RungResult(name, fault=str(error))


def _header(run: Run) -> dict[str, Any]:
    model, versions = run.model, run.versions
    types = Counter(t.type.name for t in model.tensors.values())
    return {
        "gguf-verify": project_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gguf": metadata.version("gguf"),
        "llama-cpp-python": versions["llama_cpp_python"],
        "llama.cpp": versions["llama_cpp"],
        "ggml": versions["ggml"],
        "llama.cpp build": versions["system"],
        "reference": run.reference,
        "platform": f"{platform.system()} {platform.machine()}",
        "host": run.kernel.describe(),
        "host chosen": run.kernel.chosen,
        "kernel": run.kernel.name,
        "semantics": run.kernel.semantics,
        "judged by": run.kernel.judged_by,
        "verified means": VERIFIED_BY_ITS_ORACLE if run.kernel.definition.oracle is not None else None,
        "declared order": run.kernel.order_in_words,
        "kernel_time_limit": run.options.kernel_time_limit,
        "kernels of other types": _element_kernels(run),
        "host of other types": run.kernel.host.describe(),
        "file": str(model.path),
        "size": model.size,
        "sha256": _digests(model),
        "architecture": model.architecture,
        "tensor types": dict(types),
        "covered formats": [name for name, fmt in FORMATS.items() if run.kernel.covers(fmt)],
        "seed": run.options.seed,
        "prompt": run.options.prompt,
        "n_predict": run.options.n_predict,
        "threads": run.options.threads,
        "repack": run.options.repack,
        "semantics of llama.cpp": _llama_semantics(run),
        "byte order": sys.byteorder,
    }


def _llama_semantics(run: Run) -> dict[str, str]:
    """Type → the definitions of llama.cpp's products with its matrices; on a GPU, of few tokens and of more."""
    held = {t.type.name for t in run.model.tensors.values() if may_be_matrix(t)}
    known: list[WeightFormat] = [*FORMATS.values(), *ELEMENTS.values()]
    out = {}
    for fmt in known:
        if fmt.name in held:
            few, more = (_name_of_semantics(run, fmt, tokens) for tokens in (1, MMVQ_TOKENS + 1))
            out[fmt.name] = few if few == more else f"{few} (MMVQ), {more} (MMQ)"
    return out


def _name_of_semantics(run: Run, fmt: WeightFormat, tokens: int) -> str:
    try:
        return run.llama_semantics(fmt, tokens).name
    except NoDefinition:
        return "unsupported"


def _element_kernels(run: Run) -> dict[str, str]:
    """Type → what multiplies its matrices, of types that are not quantized and that the file holds matrices of."""
    kinds = {t.type.weights for t in run.model.tensors.values() if may_be_matrix(t) and not t.type.quantized}
    return {fmt.name: ELEMENT_KERNELS[fmt.name].name for fmt in ELEMENTS.values() if fmt in kinds}


def _digests(model: Model) -> list[str]:
    return list(model.sha256())
