"""Kernels for mixtures of experts are verified like those of plain products, and on routings of every kind."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.diagnosis.routings import routing_fault
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.routing import routed
from gguf_verify.rungs.layers.probes import routings
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.drawn import keys_of_slots
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.support.errors import UsageError
from tests.meta.museum.collection import EXHIBITS
from tests.support.foreign_runs import K, M, N, operands, verified

FMT = FORMATS["Q4_0"]

PYTHON = """
import numpy as np
from gguf_verify import kernel
from gguf_verify.formats.tensor_types import FORMATS

BUG = ""

def decoded(w, shape):
    fmt = FORMATS[shape.format]
    return fmt.decode(np.ascontiguousarray(w).reshape(len(w), shape.n, -1, fmt.block_bytes)).reshape(len(w), shape.n, -1)

@kernel(formats=["Q4_0"], semantics="f32", computes="experts")
def by_ids(w, x, shape, ids):
    values, y = decoded(w, shape), np.zeros((shape.m, ids.shape[1], shape.n), np.float32)
    for m in range(shape.m):
        for t, e in enumerate(ids[m]):
            if BUG == "duplicates" and e in ids[m, :t]:
                continue
            if BUG == "64 experts":
                e %= 64
            if BUG == "one number" and e == 5:
                y[m, t, 3] += 1
            y[m, t] += values[e] @ x[m]
    return y

@kernel(formats=["Q4_0"], semantics="f32", computes="experts", experts={"block_m": 4, "activations": "slot",
        "lists": ["sorted_token_ids", "expert_ids", "num_tokens_post_padded"]}, domain={"N": {"multiple": 4}})
def by_blocks(w, x, shape, sorted_token_ids, expert_ids, num_tokens_post_padded):
    values, y = decoded(w, shape), np.zeros((len(x), shape.n), np.float32)
    for b in range(num_tokens_post_padded[0] // 4):
        of = sorted_token_ids[4 * b : 4 * b + 4]
        if BUG == "whole blocks" and (of == len(x)).any():
            continue
        of = of[of < len(x)]
        y[of] = x[of] @ values[expert_ids[b]].T
    return y

@kernel(formats=["Q4_0"], semantics="f32", computes="experts", experts={"top_k": 1, "count": {"most": 8}})
def of_few(w, x, shape, ids):
    assert ids.shape[1] == 1 and len(w) <= 8
    return by_ids(w, x, shape, ids)

GATED = {"formats": ["Q4_0"], "semantics": "f32", "computes": "experts"}

@kernel(**GATED, epilogue=["bias", "silu_gate", "token_scale"], domain={"N": {"multiple": 4}, "K": {"multiple": 64}})
def fused(w, x, shape, ids, bias, up, token_scale):
    e, slots = len(w), ids.size
    assert bias.shape == (e, shape.n) and up.shape == w.shape and token_scale.shape == (slots,)
    gate, other = (decoded(of, shape) for of in (w, up))
    y = np.zeros((slots, shape.n), np.float32)
    for slot, expert in enumerate(ids.reshape(-1)):
        own = x[slot // ids.shape[1]]
        z = gate[expert] @ own + bias[0 if BUG == "bias of expert 0" else expert]
        v = other[0 if BUG == "up of expert 0" else expert] @ own
        factor = token_scale[slot // ids.shape[1] * ids.shape[1] if BUG == "scale of slot 0" else slot]
        y[slot] = z / (1 + np.exp(-z)) * v * factor
    return y

@kernel(**GATED, epilogue=["residual"], operands={"output": {"accumulate": True}}, experts={"activations": "slot"})
def added(w, x, shape, ids, residual, output):
    values = decoded(w, shape)
    made = np.stack([values[e] @ own for e, own in zip(ids.reshape(-1), x)]) if ids.size else residual
    return made + (residual[:, ::-1] if BUG == "reversed" else residual) + output

@kernel(formats=["Q4_0"], semantics="f32", computes="experts", experts={"blocks": 4})
def declared_wrongly(w, x, shape, ids): ...

@kernel(formats=["Q4_0"], semantics="f32", experts={"top_k": 4})
def no_experts(w, x, shape): ...
"""  # noqa: E501 - a line of a kernel


def file_of(folder: Path, bug: str = "") -> Path:
    path = folder / "experts.py"
    path.write_text(PYTHON.replace('BUG = ""', f"BUG = {bug!r}"))
    return path


@pytest.mark.parametrize("name", ["by_ids", "by_blocks"])
def test_a_plain_product_and_a_routed_one(name: str, tmp_path: Path) -> None:
    rows, x = operands()
    kernel = open_foreign(f"{file_of(tmp_path)}:{name}", CpuHost(1))
    try:
        weights = kernel.upload(FMT, rows)
        assert judge(kernel.product(weights, x), product(F32, FMT, rows, x.view(np.uint8))).passed
        assert kernel.product(weights, x[:0]).shape == (0, N)
        routing = routed("any expert in any slot", M, 3, 2, 1)
        x = np.repeat(x, 3, axis=0) if name == "by_blocks" else x
        stacked = np.concatenate([rows[:4], rows[1:5]])
        y = kernel.routed(FMT, stacked, x.view(np.uint8), routing)
        assert y.shape == (M, 3, 4)
        for m in range(M):
            for t in range(3):
                own = stacked[4 * routing.ids[m, t] :][:4]
                of = x[3 * m + t : 3 * m + t + 1] if name == "by_blocks" else x[m : m + 1]
                assert judge(y[m, t][None], product(F32, FMT, own, np.ascontiguousarray(of).view(np.uint8))).passed
        assert judge(kernel.product(weights, x[:2]), product(F32, FMT, rows, x[:2].view(np.uint8))).passed, "reloaded"
    finally:
        kernel.close()


@pytest.mark.parametrize("name", ["by_blocks", "by_ids", "of_few"])
def test_right_kernels_are_verified(name: str, tmp_path: Path) -> None:
    report = verified(f"{file_of(tmp_path)}:{name}", "blocks", "layers", "tokens", tensor="blk.0.attn_k")
    assert report.exit_code == 0, [f.what for _, f in report.failures]
    assert report.rung("layers").figures["routings of experts"] >= 5
    assert report.rung("layers").worst["kernel, by routings"].utilisation < 1


@pytest.mark.parametrize(
    ("name", "bug", "said"),
    [
        ("by_ids", "duplicates", "one expert in all slots of a token.*the whole slot is zero"),
        ("by_ids", "64 experts", r"128 experts.*holds the product of expert \d+\)"),
        ("by_ids", "one number", r"\(expert 5\) row 3"),
    ],
)
def test_what_shows_in_routings_alone(name: str, bug: str, said: str, tmp_path: Path) -> None:
    kernel = f"{file_of(tmp_path, bug)}:{name}"
    report = verified(kernel, "layers", tensor="blk.0.attn_k")
    assert report.exit_code == 1
    found = [f for _, f in report.failures]
    assert len(found) <= 20
    assert "kernel, by routings" in found[0].what
    assert any(re.search(said, f.what) for f in found), [f.what for f in found]
    assert found[0].call.kind == "routing"
    alone = verified(kernel, "layers", tensor="blk.0.attn_k", only_call=found[0].call.id)
    assert next(f.what for _, f in alone.failures) == found[0].what


@pytest.mark.parametrize("bug", ["scale of slot 0", ""])
def test_a_fused_operand_of_another_slot_is_named(bug: str, tmp_path: Path) -> None:
    """The ids, the activations and the experts are right: no routing is blamed."""
    rows, x = operands()
    kernel = open_foreign(f"{file_of(tmp_path, bug)}:fused", CpuHost(1))
    try:
        found = routing_fault(kernel, FMT, kernel.definition, rows, x)
        assert (found.id if found else "") == ("epilogue" if bug else "")
        assert found is None or (
            "token_scale is another slot's" in found.words and "slot 1 gets that of 0" in found.words
        )
    finally:
        kernel.close()


@pytest.mark.parametrize("name", ["fused", "added"])
def test_what_is_fused_behind_experts(name: str, tmp_path: Path) -> None:
    rows, x = operands()
    kernel = open_foreign(f"{file_of(tmp_path)}:{name}", CpuHost(1))
    try:
        weights = kernel.upload(FMT, rows)
        of_product = product(kernel.definition, FMT, rows, x.view(np.uint8))
        assert judge(kernel.product(weights, x), of_product).passed
        assert kernel.product(weights, x[:0]).shape == (0, N)
        routing = routed("any expert in any slot", M, 2, 2, 1)
        slots = np.ascontiguousarray(np.repeat(x, 2, axis=0)).view(np.uint8)
        given = slots if name == "added" else x.view(np.uint8)
        y = kernel.routed(FMT, np.concatenate([rows[:4], rows[1:5]]), given, routing).reshape(2 * M, 4)
        keys = keys_of_slots(slots, np.arange(2 * M))
        for slot, expert in enumerate(routing.ids.reshape(-1)):
            one = slice(slot, slot + 1)
            own = product(kernel.definition, FMT, rows[expert : expert + 4], slots[one], keys=keys[one])
            assert judge(y[one], own).passed
    finally:
        kernel.close()


@pytest.mark.parametrize(
    ("name", "bug", "rung"),
    [
        ("fused", "", ""),
        ("fused", "scale of slot 0", "layers"),
        ("fused", "bias of expert 0", "blocks"),
        ("fused", "up of expert 0", "blocks"),
        ("added", "", ""),
        ("added", "reversed", "blocks"),
    ],
)
def test_fused_experts_on_a_model(name: str, bug: str, rung: str, tmp_path: Path) -> None:
    report = verified(f"{file_of(tmp_path, bug)}:{name}", "blocks", "layers", tensor="blk.0.attn_k")
    assert report.exit_code == (1 if bug else 0), [f.what for _, f in report.failures]
    assert not bug or {of.name for of, _ in report.failures} >= {rung}
    if rung == "layers":  # a product alone gives all slots of a token one scale
        assert all("kernel, by routings" in f.what for _, f in report.failures)


@pytest.mark.parametrize("bug", [True, False])
def test_routings_are_tried_by_a_checked_build(bug: bool, tmp_path: Path) -> None:
    exhibit = EXHIBITS["tail_of_the_tokens_not_of_the_slots"]
    path = exhibit.path if bug else exhibit.twin(tmp_path)
    report = verified(f"{path}:multiply", "layers", tensor="blk.0.attn_k", only_call="routing,number=2")
    layers = report.rung("layers")
    if bug:
        assert "8 experts, 7 tokens, top_k = 2" in layers.failures[0].what
        assert "past the end of its workspace" in layers.failures[0].what
        assert [fault.id for fault in layers.diagnosis.faults] == ["outside-buffers"]
    else:
        assert layers.failures == []


def test_a_checked_build_has_tiles_that_are_not_full_of_any_type() -> None:
    """Of superblocks, too: a call of 63 tokens, one less than tiles have."""
    (call,) = (call for call in routings._CALLS if call[2] == 63)
    _, top_k, m, n, *_ = call
    for fmt in FORMATS.values():
        if fmt.weights:
            assert m * top_k * n * fmt.unit <= routings._CHECKED_WORK, fmt.name


def test_a_bug_of_every_call(tmp_path: Path) -> None:
    report = verified(f"{file_of(tmp_path, 'whole blocks')}:by_blocks", "blocks", tensor="blk.0.attn_k")
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("name", "said"), [("declared_wrongly", "experts has count, top_k"), ("no_experts", 'computes = "experts"')]
)
def test_wrong_declarations(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        open_foreign(f"{file_of(tmp_path)}:{name}", CpuHost(1))
    assert K % 32 == 0
