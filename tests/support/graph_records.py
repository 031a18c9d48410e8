"""Graphs that were never judged, for the tests of reports: what each verdict can look like."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from gguf_verify.backend_results import (
    DeviceInfo,
    GraphOptions,
    GraphReport,
    LlamaBuild,
    NotJudged,
    OperationResult,
    Varying,
    WrongNode,
)

CUDA = DeviceInfo(name="CUDA0", backend="CUDA", description="a card", kind="GPU", memory=80 << 30)


def operation(name: str, device: str = "CUDA0", first: WrongNode | None = None, **fields: Any) -> OperationResult:
    """An operation with twelve nodes, of which one may be wrong."""
    usual: dict[str, Any] = {
        "fell_back": device != "CUDA0", "nodes": 12, "elements": 4096, "definitions": ("f32",), "utilisation": 0.25,
        "exact": False, "ambiguous": 0, "wrong": int(first is not None), "first": first,
    }  # fmt: skip
    if first is not None:
        usual["utilisation"] = first.utilisation
    return OperationResult(operation=name, device=device, **(usual | fields))


def wrong_node(name: str = "Qcur-0", number: int = 7, **fields: Any) -> WrongNode:
    """A rotation with three wrong elements."""
    usual: dict[str, Any] = {
        "operation": "ROPE", "device": "CUDA0", "evaluation": "the prompt of 10 tokens", "definition": "f32",
        "inputs": ("src[0] Qcur-0 F32 [32 × 4 × 10]", "src[1] inp_pos I32 [10]"), "output": "Qcur-0 F32 [32 × 4 × 10]",
        "place": "token 3, head 1, d 17", "got": 1.5, "expected": -0.25, "tolerance": 1e-6, "utilisation": 1.75e6,
        "wrong": 3, "elements": 1280, "extent": "tokens 3 to 5; head 1; d 17",
    }  # fmt: skip
    return WrongNode(node=name, number=number, **(usual | fields))


def left(name: str = "MUL_MAT Q4_0", device: str = "CUDA0", nodes: int = 5) -> NotJudged:
    """Nodes without a definition."""
    return NotJudged(operation=name, device=device, why="no definition of these sums is known", nodes=nodes)


def graph(*operations: OperationResult, **fields: Any) -> GraphReport:
    """A graph on a card, whose operations are right unless others are given."""
    found = operations or (operation("RMS_NORM"), operation("CPY F16", exact=True, definitions=("bytes", "halves")))
    wrong = tuple(each.first for each in found if each.first is not None)
    usual: dict[str, Any] = {
        "gguf_verify": "0.1.0", "path": "/models/tiny-Q4_0.gguf", "sha256": ("2f96a0a1" * 8,), "architecture": "llama",
        "build": LlamaBuild(
            llama_cpp="0.5.0", ggml="0.25.3", llama_cpp_python="none", folder="/opt/llama", features="CPU : AVX2 = 1",
        ),
        "device": CUDA, "options": GraphOptions(device="CUDA0"), "evaluations": ("the prompt of 10 tokens",),
        "operations": found, "wrong": wrong, "wrong_nodes": sum(each.wrong for each in found), "seconds": 2.5,
        "command": "gguf-verify backend /models/tiny-Q4_0.gguf --device CUDA0",
    }  # fmt: skip
    return GraphReport(**(usual | fields))


def graphs() -> dict[str, GraphReport]:
    """One of each kind."""
    nan = wrong_node("Kcur-1", 9, got=math.nan, utilisation=math.inf)
    return {
        "right": graph(),
        "wrong": graph(operation("RMS_NORM"), operation("ROPE", first=wrong_node()), operation("ADD")),
        "many wrong": graph(
            operation("ROPE", first=wrong_node(), nodes=50, wrong=40), wrong=(wrong_node(), nan), wrong_nodes=40,
            not_judged=(left(),),
        ),
        "broken off": graph(fault="llama.cpp died of SIGSEGV"),
        "interrupted": graph(ended_by="SIGINT"),
        "first failure": graph(operation("ROPE", first=wrong_node()), ended_by="first failure"),
        "not judged": graph(operation("MUL_MAT Q4_0"), not_judged=(left(), left("ADD"), left("ADD", "CPU", 1))),
        "fell back": graph(operation("RMS_NORM"), operation("ROPE", "CPU")),
        "nothing on the device": graph(operation("ROPE", "CPU")),
        "nothing": graph(operations=()),
        "varying": graph(varying=(
            Varying(micro_batch=8, against=1, operation="ROPE", node="Qcur-0", device="CUDA0", token=3, compared=71),
            Varying(micro_batch=64, against=1, operation="", node="", device="", token=-1, compared=500),
        )),
    }  # fmt: skip


#: Name of a graph → its verdict.
VERDICTS = {
    "right": "verified", "wrong": "mismatch", "many wrong": "mismatch", "broken off": "broken off",
    "interrupted": "interrupted", "first failure": "mismatch", "not judged": "not everything verified",
    "fell back": "verified", "nothing on the device": "not everything verified", "nothing": "not everything verified",
    "varying": "verified",
}  # fmt: skip


def named(name: str) -> GraphReport:
    """A graph in which everything that a file, a user, a driver or a library names has this name."""
    node = wrong_node(
        name, operation=name, device=name, evaluation=name, definition=name, inputs=(name, name), output=name,
        place=name, extent=name,
    )  # fmt: skip
    listed = (
        operation(name, name, node, definitions=(name,)), operation(f"{name} ", "CUDA0", definitions=(name,)),
        operation("ROPE", name),
    )  # fmt: skip
    return graph(
        *listed, path=f"/models/{name}", architecture=name, sha256=(name,), gguf_verify=name, fault=name,
        build=LlamaBuild(llama_cpp=name, ggml=name, llama_cpp_python=name, folder=name, features=name),
        device=msgspec.structs.replace(CUDA, name=name, backend=name, description=name),
        options=GraphOptions(device=name, llama=name, prompt=name, type_k=name, ops=name, node=name, sandbox=name),
        evaluations=(name,), not_judged=(NotJudged(operation=name, device="CPU", why=name, nodes=2),),
        varying=(Varying(micro_batch=8, against=1, operation=name, node=name, device=name, token=3, compared=71),),
        command=f"gguf-verify backend {name}",
    )  # fmt: skip
