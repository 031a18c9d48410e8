"""llama.cpp's CUDA backend: every operation on random inputs, and the fixture's graph. Needs a llama.cpp with CUDA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from gguf_verify.backend_results import GraphOptions
from gguf_verify.support.errors import LlamaFault
from gguf_verify_graph.operations import OPERATIONS, NoDefinition, judge
from gguf_verify_graph.verification import verify_graph
from tests.support.tools import FIXTURES
from tools.measure.backends import page
from tools.measure.backends.explaining import explaining
from tools.measure.backends.process import NodeProcess

pytestmark = pytest.mark.needs("llama-gpu")
DEVICE = "CUDA0"


@pytest.fixture(scope="module")
def process() -> Iterator[NodeProcess]:
    made = NodeProcess(GraphOptions(device=DEVICE))
    yield made
    made.close()


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_random_nodes(process: NodeProcess, op: str) -> None:
    """No judged node is wrong unless a finding explains it. Operations that CUDA does not offer, that end llama.cpp, or
    that have no definition there are counted."""
    counts: Counter[str] = Counter()
    known = page.findings()
    for node in OPERATIONS[op].draw(np.random.default_rng(0)):
        try:
            made = process.compute(node)
            judged = None if made is None else judge(made)
        except LlamaFault:
            counts["llama.cpp ended itself"] += 1
            continue
        except NoDefinition as error:
            counts[str(error)] += 1
            continue
        if made is None or judged is None:
            counts["not offered"] += 1
            continue
        counts["judged"] += 1
        sources = [None if s is None else (s.type, s.ne) for s in node.sources]
        assert judged.passed or explaining(made, judged, known), (node.operation, sources, judged)
    if not counts["judged"]:
        pytest.skip(f"nothing of {op} is judged on {DEVICE}: {dict(counts)}")


@pytest.mark.parametrize("name", ["tiny-Q4_0.gguf", "tiny-Q5_1.gguf"])
def test_a_graph(name: str) -> None:
    report = verify_graph(FIXTURES / name, GraphOptions(device=DEVICE, prompt="The import", progress=False))
    assert report.wrong == ()
    assert any(not each.fell_back for each in report.operations)
