"""Starting llama.cpp's process. Light to import, so that it can start while the parent still loads the rest."""

from __future__ import annotations

from ..support.processes import Spawned


class Child(Spawned):
    """A process that has been started and that nobody has waited for yet; `Llama` talks with it.

    Args:
        verbose: let llama.cpp's log through to standard error.
    """

    def __init__(self, verbose: bool = False) -> None:
        super().__init__(
            "gguf_verify.llama.worker",
            environment={
                "GGML_NO_BACKTRACE": "1",
                "OPENBLAS_NUM_THREADS": "1",  # NumPy's: it multiplies nothing there, and idle threads spin
                # on a GPU each node is computed by itself, tapped or not
                "GGML_CUDA_DISABLE_FUSION": "1",
                "GGML_CUDA_DISABLE_GRAPHS": "1",
            },
            verbose=verbose,
        )
