"""Starts llama.cpp's process. This module is quick to import: the process starts while the parent loads the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..processes.child import Spawned
from ..processes.sandbox import Confinement

#: What a process may do that reads a file with a reader that is not written for hostile ones.
CONFINED = Confinement(devices=True)


class Child(Spawned):
    """llama.cpp's process, started but not yet ready; `LlamaProcess` waits for it and calls it.

    Args:
        verbose: llama.cpp's log goes to standard error.
        llama: whether it loads llama.cpp; one that does not can only scan files.
        folder: the only one that it writes into, which is kept after its end; None: one that is removed.
        room: bytes that it may write there, beside the usual.
        shown: folders of this run that it may read.
    """

    def __init__(
        self,
        verbose: bool = False,
        llama: bool = True,
        folder: Path | None = None,
        room: int = 0,
        shown: tuple[Path, ...] = (),
    ) -> None:
        usual = CONFINED.limits
        limits = replace(usual, file_size=usual.file_size + room, folder_size=usual.folder_size + room)
        super().__init__(
            "gguf_verify.llama.worker",
            *([] if llama else ["--without-llama"]),
            environment={
                "GGML_NO_BACKTRACE": "1",
                "OPENBLAS_NUM_THREADS": "1",  # NumPy multiplies nothing there, and idle threads spin
                # on a GPU, each node is computed by itself whether it is tapped or not
                "GGML_CUDA_DISABLE_FUSION": "1",
                "GGML_CUDA_DISABLE_GRAPHS": "1",
            },
            verbose=verbose,
            confined=replace(CONFINED, limits=limits, folder=folder, shown=shown),
        )
