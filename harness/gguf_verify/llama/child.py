"""Start of llama.cpp's process. This module imports quickly: the process starts while the parent imports the rest."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..processes.child import Spawned
from ..processes.sandbox import Confinement
from ..support.sealed import of_fixed_size

if TYPE_CHECKING:
    from ..support.lanes import Lanes

#: Confinement of a process that reads files with a reader not written for hostile ones.
_CONFINED = Confinement(devices=True)


def confined(**limits: int) -> Confinement:
    """Return the confinement of a process that reads files with a reader not written for hostile ones. It gets files as
    descriptors.

    Args:
        limits: fields of `Limits` to change.
    """
    return replace(_CONFINED, limits=replace(_CONFINED.limits, **limits))


class Child(Spawned):
    """llama.cpp's process, started but not yet ready; `LlamaProcess` waits for it and calls it.

    Args:
        verbose: print llama.cpp's log on standard error.
        llama: whether it loads llama.cpp; without, it can only scan files.
        folder: its only writable folder, which is kept; None: one that is removed.
        room: bytes that it may write there, in addition to the usual limit.
        build: the folder of llama.cpp's libraries; None: those of llama-cpp-python.
    """

    def __init__(
        self,
        verbose: bool = False,
        llama: bool = True,
        folder: Path | None = None,
        room: int = 0,
        build: Path | None = None,
    ) -> None:
        usual = _CONFINED.limits
        may = confined(file_size=usual.file_size + room, folder_size=usual.folder_size + room)
        self._lane_files = _lane_files()
        super().__init__(
            "gguf_verify.llama.worker",
            *([] if llama else ["--without-llama"]),
            *([] if build is None else [f"--build={build}"]),
            *(["--lanes=" + ",".join(map(str, self._lane_files))] if self._lane_files else []),
            handles=self._lane_files,
            environment={
                "GGML_NO_BACKTRACE": "1",
                "OPENBLAS_NUM_THREADS": "1",  # NumPy multiplies nothing there, and idle threads spin
                # llama.cpp's idle threads would spin for some 20 ms while a product is judged on the same cores; this
                # is long enough for them to wait for each other at each node
                "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "10000"),
                # on a GPU, compute each node alone, whether it is tapped or not
                "GGML_CUDA_DISABLE_FUSION": "1",
                "GGML_CUDA_DISABLE_GRAPHS": "1",
            },
            verbose=verbose,
            confined=replace(may, folder=folder, shown=() if build is None else (build,)),
        )

    @cached_property
    def lanes(self) -> Lanes | None:
        """Shared memory next to the socket, if the system provides it."""
        from ..support.lanes import Lane, Lanes  # imported late: needs NumPy

        return Lanes(*map(Lane, self._lane_files)) if self._lane_files else None

    def _release(self) -> None:
        super()._release()
        files, self._lane_files = self._lane_files, ()
        if (lanes := self.__dict__.get("lanes")) is not None:
            lanes.close()
        else:
            for each in files:
                os.close(each)


def _lane_files() -> tuple[int, ...]:
    """Make a file for each of `Lanes`; none if the system provides none."""
    made: list[int] = []
    try:
        for _ in range(2):
            made.append(of_fixed_size(_lane_size()))
    except (AttributeError, OSError, OverflowError):
        for each in made:
            os.close(each)
        return ()
    return tuple(made)


def _lane_size() -> int:
    """Return the size of a lane in bytes, in whole pages. A process can write there without mapping it, which its
    memory limit does not count; this fraction of the machine's memory may be used in addition to that limit."""
    return os.sysconf("SC_PAGE_SIZE") * (os.sysconf("SC_PHYS_PAGES") // 16)
