"""The environment of a run, for its report: versions, kernel, file, reference, sandbox and options."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from ..formats.tensor_types import ELEMENTS, FORMATS, WeightFormat
from ..gguf.matrices import may_be_matrix
from ..hosts.base import Host
from ..kernels.interface import Candidate
from ..kernels.shipped import ELEMENT_KERNELS
from ..processes import sandbox
from ..results.coverage import coverage_of
from ..results.environment import Environment, FileInfo, HostInfo, KernelInfo, ReferenceInfo, Versions
from ..results.options import Options
from ..rungs.drawn import NAME as DRAWN_NAME
from ..rungs.drawn import Drawn
from ..rungs.run import Run
from ..support.version import project_version

#: What "verified" says of a kernel that is judged by an oracle of its author.
VERIFIED_BY_ITS_ORACLE = (
    "the kernel computes what an oracle of its author says; how near that is to llama.cpp's product, only the oracle's "
    "distances to the known definitions above tell"
)
#: The value of a field that was not known yet when a signal ended the run.
UNKNOWN = "unknown"


def unknown_environment(
    path: Path | str | Drawn, kernel: Candidate | str | Callable[..., Any], host: Host | str, options: Options
) -> Environment:  # fmt: skip
    """The environment of a run that a signal ended before it was known: the request, and no more."""
    where = HostInfo(name=host if isinstance(host, str) else host.name, device=UNKNOWN)
    name = kernel if isinstance(kernel, str) else getattr(kernel, "name", getattr(kernel, "__name__", UNKNOWN))
    try:
        size = 0 if isinstance(path, Drawn) else Path(path).stat().st_size
    except (OSError, ValueError):
        size = 0
    shown = DRAWN_NAME if isinstance(path, Drawn) else str(path)
    return Environment(
        versions=_versions(dict.fromkeys(("llama_cpp_python", "llama_cpp", "ggml", "system"), UNKNOWN)), host=where,
        kernel=KernelInfo(
            name=str(name), definition=UNKNOWN, judged_by=None, verified_means=None, order=UNKNOWN, covers=(),
            element_kernels={}, element_host=where,
        ),
        file=FileInfo(path=shown, size=size, sha256=(), architecture=UNKNOWN, tensor_types={}),
        reference=ReferenceInfo(where=UNKNOWN, definitions={}), sandbox=sandbox.Sandbox(kind="none", by=UNKNOWN),
        options=options,
    )  # fmt: skip


def _versions(of_llama: Mapping[str, str]) -> Versions:
    from importlib import metadata  # slow to import

    return Versions(
        gguf_verify=project_version(), python=platform.python_version(), numpy=np.__version__,
        gguf=metadata.version("gguf"), llama_cpp_python=of_llama["llama_cpp_python"],
        llama_cpp=of_llama["llama_cpp"], ggml=of_llama["ggml"], llama_build=of_llama["system"],
        platform=f"{platform.system()} {platform.machine()}", byte_order=sys.byteorder,
    )  # fmt: skip


def environment_of(run: Run, hashed: bool = True) -> Environment:
    """The environment of a run. `hashed`: with the file's digests, although they take their time; else `completed`
    adds them."""
    kernel, exact_on = run.kernel, run.exact_on[1]  # first what takes its time while the file is hashed
    return Environment(
        versions=_versions(run.versions),
        host=kernel.runs_on(),
        kernel=KernelInfo(
            name=kernel.name, definition=kernel.semantics, declares=kernel.beside_definition,
            judged_by=kernel.judged_by,
            verified_means=VERIFIED_BY_ITS_ORACLE if kernel.definition.oracle is not None else None,
            computes=kernel.computes, order=kernel.order_in_words, code=kernel.code,
            covers=tuple(name for name, fmt in FORMATS.items() if kernel.covers(fmt)),
            element_kernels=_element_kernels(run), element_host=kernel.host.info(),
            hints=kernel.hints,
        ),
        reference=ReferenceInfo(where=run.backend.describe(), definitions=_llama_definitions(run)),
        sandbox=_sandbox(run),
        options=run.options, exact_on=exact_on,
        file=run.file_info(hashed),
    )  # fmt: skip


def completed(environment: Environment, run: Run, wait: bool = True) -> Environment:
    """The environment of a run with what is known at its end alone: its file's digests, and the files that its kernel
    has opened. With `wait`, digests that are not there yet are waited for; else they are omitted."""
    observed = run.judges.observed.with_(run.observed_here)
    covered = coverage_of(observed.execution, run.kernel.texts, run.kernel.impossible)
    kernel = replace(environment.kernel, opened=observed.opened, coverage=covered)
    file = environment.file if environment.file.sha256 else run.file_info(wait)
    return replace(environment, kernel=kernel, file=file)


def _sandbox(run: Run) -> sandbox.Sandbox:
    """The confinement of llama.cpp and, if it differs, of the kernel."""
    found, of_kernel = sandbox.current(), run.kernel.sandbox
    if of_kernel in (None, found):
        return found
    missing = (*found.missing, *(words for words in of_kernel.missing if words not in found.missing))
    return sandbox.Sandbox(kind=of_kernel.kind, by=f"{found.by}; the kernel: {of_kernel.by}", missing=missing)


def _llama_definitions(run: Run) -> dict[str, str]:
    """Type → the definitions of llama.cpp's products with its matrices, in words."""
    held = {t.type.name for t in run.model.tensors.values() if may_be_matrix(t)}
    known: list[WeightFormat] = [*FORMATS.values(), *ELEMENTS.values()]
    return {fmt.name: run.backend.definitions_in_words(fmt) for fmt in known if fmt.name in held}


def _element_kernels(run: Run) -> dict[str, str]:
    """Type → the kernel of its matrices, for types that are not quantized and of which the file holds matrices."""
    kinds = {t.type.weights for t in run.model.tensors.values() if may_be_matrix(t) and not t.type.quantized}
    return {fmt.name: ELEMENT_KERNELS[fmt.name].name for fmt in ELEMENTS.values() if fmt in kinds}
