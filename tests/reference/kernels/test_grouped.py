"""The grouped product: every slot has the bits of its expert's product, whatever the routing."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.grouped import Grouped
from gguf_verify.kernels.routing import ROUTINGS, Routing, padded_slots, routed
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.support.errors import UsageError
from tools.measure.bench.matrices import random_rows

Q8_1 = SEMANTICS["q8_1"]
HOST = CpuHost(1)


def expected(fmt, rows, x, routing: Routing, n: int) -> np.ndarray:
    """float32[M, top_k, N], of blocks uint8[M, …] or, of slots, [M·top_k, …]."""
    found = np.empty((*routing.ids.shape, n), np.float32)
    for m, token in enumerate(routing.ids):
        for t, expert in enumerate(token):
            given = x[m * routing.top_k + t] if len(x) != len(routing.ids) else x[m]
            of = rows[expert * n : (expert + 1) * n]
            found[m, t] = product(Q8_1, fmt, of, given[None], ASCENDING).ordered[0]
    return found


@pytest.mark.parametrize("how", ROUTINGS)
def test_every_routing(how: str) -> None:
    fmt, n, k, experts = FORMATS["Q8_0"], 37, 96, 5
    rows = random_rows(fmt, experts * n, k, 1)
    for m, top_k, own in ((1, 1, False), (2, 2, True), (9, 2, False), (21, 3, True)):
        routing = routed(how, m, top_k, experts, 7)
        x = Q8_1.bytes_of(np.random.default_rng(m).standard_normal((m * top_k if own else m, k), np.float32))
        y = Grouped(HOST).routed(fmt, rows, x, routing)
        assert y.tobytes() == expected(fmt, rows, x, routing, n).tobytes()


@pytest.mark.parametrize(
    ("kind", "k", "experts", "m"),
    [
        ("Q4_0", 256, 3, 12),
        ("Q4_0", 256, 9, 4),
        pytest.param("Q4_0", 65536, 3, 1, id="activations do not fit on chip"),
        ("Q6_K", 256, 3, 12),
        ("Q6_K", 256, 9, 4),
    ],
)
def test_float32_activations(kind: str, k: int, experts: int, m: int) -> None:
    fmt, n, top_k = FORMATS[kind], 130 if k == 256 else 35, 2
    rows = random_rows(fmt, experts * n, k, 2)
    x = np.random.default_rng(3).standard_normal((m, k), np.float32)
    routing = routed("different experts in a token", m, top_k, experts, 1)
    grouped, out = Grouped(HOST), HOST.output(4 * m * top_k * n)
    weights = grouped.upload(fmt, rows, experts)
    grouped.multiply(weights, HOST.upload(x), HOST.upload(routing.ids), out, m, top_k)
    y = HOST.download(out).view(np.float32).reshape(m, top_k, n)
    assert y.tobytes() == expected(fmt, rows, Q8_1.bytes_of(x), routing, n).tobytes()


@pytest.mark.parametrize(("m", "top_k", "experts"), [(1, 8, 128), (70, 4, 9), (33, 1, 1)])
def test_slots_by_expert(m: int, top_k: int, experts: int) -> None:
    """The lists are those of `Routing.aligned`."""
    routing = routed("experts without tokens", m, top_k, experts, 5)
    capacity = padded_slots(m, top_k, experts, 16)
    slots, of_tiles = HOST.output(4 * capacity), HOST.output(4 * capacity // 16)
    fmt = FORMATS["Q8_0"]
    route = Grouped(HOST).site.function("route", fmt, "pack/routing.cu", {"TOKENS": "16"})
    args = [HOST.upload(routing.ids), slots, of_tiles, np.int64(m * top_k), np.int64(capacity)]
    HOST.launch(route, (experts, 1, 1), (256, 1, 1), args)
    wanted, blocks, _ = routing.aligned(16)
    assert HOST.download(slots).view(np.int32).tolist() == wanted.tolist()
    assert HOST.download(of_tiles).view(np.int32).tolist() == blocks.tolist()


def test_tiles_and_what_is_refused() -> None:
    fmt = FORMATS["Q4_0"]
    tokens = [Grouped.tiling(fmt, slots, 8).tokens for slots in (1, 8 * 16, 8 * 16 + 1, 8 * 33, 8 * 1000)]
    assert tokens == [16, 16, 32, 32, 64]
    assert [Grouped.tiling(FORMATS[kind], 9, 8).groups for kind in ("Q4_K", "Q8_0")] == [1, 2]
    with pytest.raises(UsageError, match="7 rows are not equal matrices of 1 to 1024 experts"):
        Grouped(HOST).upload(fmt, np.zeros((7, 18), np.uint8), 2)
