"""Opening a model (or making random data) and then the kernel, of which only the needed types are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..formats import FORMATS
from ..gguf.matrices import may_be_matrix
from ..gguf.model import Model, open_model
from ..hosts.base import Host
from ..kernels.by_name import further, open_kernel
from ..kernels.interface import Candidate
from ..results import Options
from ..support.progress import Steps
from .drawn import Drawn, drawn_run
from .run import Run, matches


@contextmanager
def open_run(
    path: Path | str | Drawn, kernel: Candidate | str | Callable[..., Any], host: Host | str, options: Options
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
        with opened(types_of(model, options.tensor)) as multiplier:
            yield Run(model, multiplier, options)


def types_of(model: Model, pattern: str | None) -> frozenset[str]:
    """The types of blocks of the matrices that a pattern selects."""
    selected = (t for name, t in model.tensors.items() if matches(pattern, name) and may_be_matrix(t))
    return frozenset(t.type.name for t in selected if t.type.name in FORMATS)
