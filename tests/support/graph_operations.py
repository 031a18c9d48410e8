"""The operations of models' graphs: `python -m tests.support.graph_operations MODEL…` says a line of JSON for each.

It is a process of its own, for llama.cpp aborts where a file does not fit its architecture.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

#: What a model is given: nine tokens, the first of which begins a sequence in most vocabularies here.
PROMPT = [1, *range(10, 18)]


def graph_operations(models: Iterable[Path]) -> list[Counter[str]]:
    """How many nodes of each operation are in each model's graph of a prompt. UNARY and GLU are named by their variant,
    such as SILU or SWIGLU."""
    command = [sys.executable, "-m", "tests.support.graph_operations", *map(str, models)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).resolve().parents[2], check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [Counter(json.loads(line)) for line in done.stdout.splitlines()]


def _all(paths: Iterable[str]) -> Iterator[Counter[str]]:
    from gguf_verify.llama import ggml
    from gguf_verify.llama.worker.calls import Libraries
    from gguf_verify.llama.worker.model import LoadedModel
    from gguf_verify.llama.worker.products import Products

    seen: Counter[str] = Counter()

    class Counting(LoadedModel):
        def _on_node(self, t: int, ask: bool, _data: Any) -> bool:
            if ask:
                seen[ggml.ggml_op_desc(ctypes.cast(t, ggml.TensorP)).decode()] += 1
            return not ask

    libraries, products = Libraries(), Products()
    for path in paths:
        model = Counting(Pipe()[0], libraries, products.device)
        opened, _ = model.open(path, threads=1, repack=False, backend="cpu")
        model.make_context(len(PROMPT), len(PROMPT))
        if opened["encoder"] and opened["decoder"]:
            model.read_source(PROMPT)
        seen.clear()
        model.evaluate(PROMPT, "plain", {})
        yield seen


if __name__ == "__main__":
    for counted in _all(sys.argv[1:]):
        print(json.dumps(counted), flush=True)
