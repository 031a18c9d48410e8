"""A llama.cpp process that computes nodes outside any model."""

from __future__ import annotations

from pathlib import Path

from gguf_verify.backend_results import GraphOptions
from gguf_verify.llama.builds import Build, find
from gguf_verify.llama.library import Llama
from gguf_verify.support.errors import LlamaFault, UsageError
from gguf_verify_graph.operations import Node


class NodeProcess:
    """A llama.cpp process, which is restarted after a node has ended it."""

    def __init__(self, asked: GraphOptions) -> None:
        self._asked = asked
        found = find(Path(asked.llama)) if asked.llama else None
        if isinstance(found, str):
            raise UsageError(found)
        self._build: Build | None = found
        self._llama: Llama | None = None

    def compute(self, node: Node) -> Node | None:
        """Call `Llama.compute_node`. Raises LlamaFault if the process ended."""
        if self._llama is None:
            path = None if self._build is None else self._build.path
            self._llama = Llama(self._asked.time_limit, self._asked.verbose, build=path)
        try:
            return self._llama.compute_node(node, self._asked.device)
        except LlamaFault:
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        llama, self._llama = self._llama, None
        if llama is not None:
            llama.close()
