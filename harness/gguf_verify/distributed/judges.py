"""Choice of the processes that judge: this one, others of this machine, or Ray's."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ..rungs.drawn import Drawn
from ..rungs.opening import Request
from ..rungs.pool import Pool
from ..rungs.run import Run
from ..support.command_line import cores
from ..support.errors import EnvironmentFault, UsageError
from .connection import LOCAL, connected
from .local import local_processes, paying
from .runs import RunWork, uses_gpu

INSTALL = "pip install 'ray>=2.52'"


@contextmanager
def ray_at(address: str) -> Iterator[None]:
    """In this block Ray is connected. Raises EnvironmentFault where it is not installed or not to be reached."""
    if find_spec("ray") is None:
        raise EnvironmentFault(f"--ray needs Ray, which is not installed; run: {INSTALL}")
    with connected(address):
        yield


@contextmanager
def judges(run: Run, request: Request) -> Iterator[Pool]:
    """The processes that judge a run's tasks while the block lasts: this one, others of this machine, or Ray's.

    Other processes open model, kernel and host by their names. Without Ray and `jobs`, `local.paying` decides how many
    processes there are.

    Raises UsageError for what another process cannot open; EnvironmentFault if Ray is not installed or cannot be
    reached, or if its processes do not see the same model, kernel, machine or sandbox as this one.
    """
    address, jobs, options = request.ray, request.jobs, request.options
    path, kernel, host = request.path, request.kernel, request.host
    if address is not None and jobs is not None:
        raise UsageError("--jobs are processes of this machine, and --ray brings its own: give one of them")
    named = isinstance(path, str | Path | Drawn) and isinstance(kernel, str) and isinstance(host, str)
    count = 1 if address is not None or options.only_call else jobs or (paying(run, cores()) if named else 1)
    if address is None and count == 1:
        yield Pool()
        return
    flag = "--jobs" if address is None else "--ray"
    if not isinstance(path, str | Path | Drawn):
        raise UsageError(f"{flag} opens a model in several processes: give it by its path")
    if not isinstance(kernel, str) or not isinstance(host, str):
        raise UsageError(f"{flag} opens the kernel and its host in several processes: give both by their names")
    opened = path if isinstance(path, Drawn) else str(Path(path).absolute())
    if address is None:
        threads = max(1, options.threads // count)
        work = RunWork.of(run, opened, kernel, host, replace(options, threads=threads), here=True)
        with local_processes(work, count, must_open=jobs is not None, verbose=options.verbose) as judging:
            yield judging
        return
    with ray_at(address):
        from .cluster import cluster  # it imports Ray

        def work_of(threads: int) -> RunWork:
            return RunWork.of(run, opened, kernel, host, replace(options, threads=threads), here=address == LOCAL)

        on_card = functools.partial(paying, run) if uses_gpu(run) else None
        with cluster(address, work_of, on_card, options.time_limit, options.progress) as found:
            yield found
