"""llama.cpp's Vulkan backend: what operations draw is right, but for what docs/backends.toml says, and so is a graph.

The build is that of `needs.vulkan`; its shaders are compiled when they are first used.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gguf_verify.backend_results import GraphOptions
from gguf_verify.llama.builds import Build, find
from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import OPERATIONS, Node, judge
from gguf_verify_graph.verification import verify_graph
from tests.support import needs
from tests.support.operations import with_output
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.needs("vulkan")

DEVICE = "Vulkan0"
OPS = (
    "ACC", "ADD", "ADD_ID", "ARANGE", "ARGMAX", "CLAMP", "CONCAT", "CUMSUM", "DIAG_MASK_INF", "DIV", "GROUP_NORM",
    "L2_NORM", "NORM", "PAD", "RMS_NORM", "ROLL", "SCALE", "SUM_ROWS", "TRI",
)  # fmt: skip


@pytest.fixture(scope="module")
def vulkan() -> Iterator[Llama]:
    needs.need("vulkan")
    build = find(needs.vulkan())
    assert isinstance(build, Build)
    with Llama(build=build.path) as llama:
        yield llama


def _explained(node: Node) -> bool:
    """It does what `vulkan-group-norm` of docs/backends.toml says."""
    return node.op == "GROUP_NORM" and node.source(0).ne[2] % node.integer(0) != 0


@pytest.mark.parametrize("op", OPS)
def test_right(vulkan: Llama, op: str) -> None:
    computed = 0
    for node in OPERATIONS[op].draw(np.random.default_rng(0)):
        made = vulkan.compute_node(node, device=DEVICE)
        if made is None:
            continue
        assert (made.backend, made.device) == ("Vulkan", DEVICE)
        one = judge(made)
        assert one.passed is not _explained(node), f"{[s and (s.type, s.ne) for s in node.sources]}: {one}"
        computed += 1
    assert computed


@pytest.mark.parametrize("op", ["ADD", "CLAMP", "RMS_NORM", "SUM_ROWS"])
def test_another_output_is_wrong(vulkan: Llama, op: str) -> None:
    node = next(n for n in OPERATIONS[op].draw(np.random.default_rng(0)) if n.output.ne[1] > 2)
    made = vulkan.compute_node(node, device=DEVICE)
    assert made is not None
    assert judge(made).passed
    assert not judge(with_output(made, np.roll(made.output.data, 1, axis=2))).passed


def test_a_graph_is_right() -> None:
    needs.need("vulkan")
    options = GraphOptions(device=DEVICE, llama=str(needs.vulkan()), n_predict=1, progress=False)
    report = verify_graph(FIXTURES / "tiny-Q4_0.gguf", options)
    assert report.wrong == ()
    assert report.not_judged == ()
    assert report.verdict != "mismatch"
    assert {each.operation for each in report.operations if not each.fell_back} > {
        "MUL_MAT Q4_0", "FLASH_ATTN_EXT F16", "ROPE", "RMS_NORM",
    }  # fmt: skip
