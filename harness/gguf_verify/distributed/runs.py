"""A run of a kernel, opened in another process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from ..hosts.choice import HOSTS
from ..llama.backends import on_card
from ..processes.sandbox import sandboxed
from ..results.options import Options
from ..rungs.drawn import Drawn
from ..rungs.opening import open_run
from ..rungs.run import Run
from .identity import Files, check, identity
from .worker import Place


@dataclass(frozen=True)
class RunWork:
    """The work of a worker, and the identity that it must find.

    Args:
        path, kernel, host, options: see `Request`; random data are made again.
        files: of the model.
        known: see `identity.identity`.
    """

    path: str | Drawn
    kernel: str
    host: str
    options: Options
    files: Files
    known: dict[str, str]
    place: Place

    @classmethod
    def of(
        cls, run: Run, path: str | Drawn, kernel: str, host: str, options: Options, here: bool = False
    ) -> RunWork:  # fmt: skip
        """The run of this process. `here`: only on this machine, where the files of a model need no digest; those of
        random data do, since each process writes its own. Raises EnvironmentFault."""
        same = here and not isinstance(path, Drawn)
        files = Files.of([part.mapped for part in run.model.parts], (lambda: ()) if same else run.model.sha256)
        return cls(path, kernel, host, replace(options, progress=False), files, identity(run, kernel), Place())

    def open(self, stack: ExitStack) -> Run:
        """As `Work.open`."""
        options = self.options
        stack.enter_context(sandboxed(options.sandbox, options.kernel_memory))
        run = stack.enter_context(open_run(self.path, self.kernel, self.host, options))
        stack.callback(run.close)
        name = "the random data" if isinstance(self.path, Drawn) else self.path
        self.files.expect([part.mapped for part in run.model.parts], run.model.sha256, name)
        check(self.known, identity(run, self.kernel))
        return run


def uses_gpu(run: Run) -> bool:
    """Whether the kernel or llama.cpp's reference runs on a GPU."""
    return not HOSTS[run.kernel.host.name].emulated or on_card(run.options.reference)
