"""Tasks of rungs in processes of Ray, on this machine or on several: `--ray`.

It may import the rungs and what is below them. Ray itself is imported where it was asked for, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..results import Options
from ..rungs.run import Run
from ..rungs.tasks import Here, Judges
from ..support.errors import EnvironmentFault, UsageError
from .connection import LOCAL, connected

INSTALL = "pip install 'ray>=2.52'"


@contextmanager
def judges(address: str | None, run: Run, path: Any, kernel: Any, host: Any, options: Options) -> Iterator[Judges]:
    """Who judges a run's tasks: this process, or processes of Ray as long as the block lasts.

    Args:
        address: of a cluster of Ray, or LOCAL; None: this process.
        path, kernel, host, options: as `verify` takes them. Another process opens them by their names.

    Raises UsageError for what another process cannot open; EnvironmentFault where Ray is not installed or not to be
    reached, and where its processes do not see the same model, kernel, machine or sandbox as this one.
    """
    if address is None:
        yield Here()
        return
    if not isinstance(path, str | Path):
        raise UsageError("--ray opens a model in several processes; drawn data are in this one: leave it out")
    if not isinstance(kernel, str) or not isinstance(host, str):
        raise UsageError("--ray opens the kernel and its host in several processes: give both by their names")
    if options.save_case:
        raise UsageError("--save-case needs the wrong product in this process: leave --ray out")
    if find_spec("ray") is None:
        raise EnvironmentFault(f"--ray needs Ray, which is not installed; run: {INSTALL}")
    with connected(address):
        from .cluster import cluster  # it imports Ray

        with cluster(address, run, str(Path(path).absolute()), kernel, host, options) as found:
            yield found


__all__ = ["INSTALL", "LOCAL", "judges"]
