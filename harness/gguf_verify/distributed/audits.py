"""An audit's tensors, scanned and compared with their source in processes of Ray."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..audit.content import Content, contents
from ..audit.elsewhere import Elsewhere, Examined, Examiners, runs_of
from ..audit.importance import Importance, read_importance
from ..audit.record import AuditOptions
from ..audit.source import Comparison, compare
from ..audit.sources import Source, open_source
from ..gguf.file import Tensor
from ..gguf.mapped import Mapped
from ..gguf.model import Model, open_model
from ..llama.library import Llama, WithoutLlama
from ..processes.sandbox import sandboxed
from ..results.environment import Observed
from ..rungs.budget import Budget
from ..rungs.pool import Step
from ..support.errors import EnvironmentFault
from .connection import LOCAL
from .identity import Files, check, of_code, of_llama
from .worker import Place

#: Tasks of all tensors for each that is wanted at a time.
_TASKS = 4


@contextmanager
def _examiners(address: str, options: AuditOptions, examined: Examined) -> Iterator[Examiners]:
    from .cluster import cluster  # it imports Ray

    with cluster(address, lambda threads: AuditWork.of(address, options, examined, threads), on_card=None,
                 time_limit=options.time_limit, progress=options.progress) as workers:  # fmt: skip
        yield _Examiners(workers, examined)


def examiners(address: str, options: AuditOptions) -> Elsewhere:
    """Processes of the cluster of Ray that this process is connected with, for an audit with these options."""
    return lambda examined: _examiners(address, options, examined)


# ---- in this process -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _WithoutKernel:
    """An audit, which opens no kernel and has no time limit."""

    budget: Budget = field(default_factory=Budget, kw_only=True)

    @property
    def observed_here(self) -> Observed:
        return Observed()


class _Examiners:
    """As `Examiners`."""

    def __init__(self, workers: Any, examined: Examined) -> None:
        self._workers, self._examined = workers, examined

    def contents(self, tensors: Sequence[Tensor], on_bytes: Callable[[int], object]) -> Generator[Content]:
        n = _TASKS * self._workers.wanted
        plan = (Step(task=ContentsOf(tuple(t.name for t in run))) for run in runs_of(tensors, n))
        of = self._examined.model.tensors
        for step, found in self._workers.each(_WithoutKernel(), plan):
            for name, fields in zip(step.task.tensors, found, strict=True):
                on_bytes(of[name].nbytes)
                yield Content(of[name], *fields)

    def comparisons(self, tensors: Sequence[Tensor]) -> Generator[Comparison]:
        source = self._examined.source
        assert source is not None
        for step, found in self._workers.each(_WithoutKernel(), (Step(task=ComparisonOf(t.name)) for t in tensors)):
            tensor = self._examined.model.tensors[step.task.tensor]
            comparison = replace(found, tensor=tensor, source=source.tensors.get(tensor.name) if found.source else None)
            if comparison.xrays is not None:  # they name the file as this process does
                first, second = (replace(of, file=str(tensor.mapped.path)) for of in comparison.xrays)
                comparison = replace(comparison, xrays=(first, second))
            yield comparison


# ---- in the others ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenAudit(_WithoutKernel):
    """The open files and llama.cpp of a worker."""

    model: Model
    llama: Llama | WithoutLlama
    threads: int
    source: Source | None = None
    importance: Importance | None = None


@dataclass(frozen=True)
class ContentsOf:
    """The contents of some tensors."""

    tensors: tuple[str, ...]

    def judge(self, on: OpenAudit) -> tuple[tuple[Any, ...], ...]:
        """Of each tensor the fields of `Content`, without the tensor. Raises EnvironmentFault, LlamaRefused."""
        tensors = [on.model.tensors[name] for name in self.tensors]
        with closing(contents(tensors, on.llama, on.threads)) as found:
            return tuple((c.scan, c.unverified, c.described, c.bad, c.different) for c in found)


@dataclass(frozen=True)
class ComparisonOf:
    """One tensor against its source."""

    tensor: str

    def judge(self, on: OpenAudit) -> Comparison:
        """Without the tensor and its source; its name says whether it has one. Raises EnvironmentFault."""
        assert on.source is not None
        assert isinstance(on.llama, Llama)
        found = compare(on.model.tensors[self.tensor], on.source, on.llama, on.threads, importance=on.importance)
        return replace(found, tensor=None, source=found.source and self.tensor)  # type: ignore[arg-type]


@dataclass(frozen=True)
class AuditWork:
    """The work of a worker, and the identity that it must find.

    Args:
        path, source, imatrix: files.
        options: of the audit.
        files: the model's and the source's.
        imatrix_sha256: of the importance matrix.
        known: of code and llama.cpp, see `identity`.
    """

    path: str
    source: str | None
    imatrix: str | None
    options: AuditOptions
    files: Files
    imatrix_sha256: str | None
    known: dict[str, str]
    place: Place

    @classmethod
    def of(cls, address: str, options: AuditOptions, examined: Examined, threads: int) -> AuditWork:
        """The audit of this process. Files on this machine need no digest."""
        model, source, importance = examined.model, examined.source, examined.importance
        files = Files.of(
            _mapped(model, source), (lambda: ()) if address == LOCAL else lambda: _digests(examined.digests, source)
        )
        return cls(
            str(model.path.absolute()), None if source is None else str(source.path.absolute()),
            None if importance is None else str(importance.path.absolute()),
            replace(options, threads=threads, progress=False, waivers=None), files,
            None if importance is None else importance.sha256, _known(examined.versions), Place(),
        )  # fmt: skip

    def open(self, stack: ExitStack) -> OpenAudit:
        """As `Work.open`."""
        options = self.options
        stack.enter_context(sandboxed(options.sandbox))
        model = stack.enter_context(open_model(Path(self.path)))
        source = None if self.source is None else stack.enter_context(open_source(Path(self.source), model))
        names = self.path if self.source is None else f"{self.path} or {self.source}"
        self.files.expect(_mapped(model, source), lambda: _digests(model.sha256, source), names)
        importance = None if self.imatrix is None else read_importance(Path(self.imatrix))
        if importance is not None and importance.sha256 != self.imatrix_sha256:
            raise EnvironmentFault(f"it finds another file as {self.imatrix}: its SHA-256 is not that of the file here")
        limits = options.time_limit, options.verbose
        llama: Llama | WithoutLlama
        if "llama.cpp (llama_cpp)" in self.known:
            llama = stack.enter_context(Llama(*limits))
        else:
            llama = stack.enter_context(WithoutLlama(*limits))
        check(self.known, _known(llama.versions() if isinstance(llama, Llama) else None))
        return OpenAudit(model, llama, options.threads, source, importance)


def _mapped(model: Model, source: Source | None) -> list[Mapped]:
    return [*(part.mapped for part in model.parts), *(source.files if source is not None else ())]


def _digests(of_model: Callable[[], Sequence[str]], source: Source | None) -> tuple[str, ...]:
    return (*of_model(), *(source.sha256() if source is not None else ()))


def _known(versions: Any) -> dict[str, str]:
    return of_code() | ({} if versions is None else of_llama(versions))
