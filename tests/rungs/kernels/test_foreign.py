"""Kernels of other people in Python: taken as they are declared, and not trusted."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gguf_verify.diagnosis import replay
from gguf_verify.diagnosis.experiments import Experiments
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.identification import identify_model
from gguf_verify.kernels.foreign import conversation
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.report.writer import Kind
from gguf_verify.results.failures import Failure
from gguf_verify.results.options import Options
from gguf_verify.results.rungs import RungResult
from gguf_verify.support.errors import KernelFault, NotRun, UsageError
from gguf_verify.verification import verify
from tests.support import foreign_kernels
from tests.support.foreign_runs import EXAMPLES, KERNELS, Q4_0, N, altered, multiplied, opened, operands, verified
from tests.support.needs import need
from tests.support.processes import gone
from tests.support.shown import text_of
from tests.support.tools import ROOT, assert_one_line, cli, cli_here, flat


@pytest.mark.parametrize("name", ["right", "plain", "dlpack", "into_out", "prints", "float_activations", "on_device"])
def test_right(name: str) -> None:
    kernel = opened(name)
    assert multiplied(kernel)
    assert multiplied(kernel)
    kernel.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", r"^the kernel raised ValueError: first line; at [\w.]+:\d+ in raises: raise ValueError"),
        ("leaves", r"^the kernel raised SystemExit: goodbye; at [\w.]+:\d+ in leaves: "),
        ("transposed", r"returned float32\[7, 5\], expected float32\[5, 7\]"),
        ("doubles", r"returned float64\[5, 7\], expected float32\[5, 7\]"),
        ("nothing", r"returned NoneType, not an array"),
        ("modifies_packed", r"not deterministic: .* changed 5 of 35 outputs, the first row 0 token 0"),
        ("keeps", r"does not always write its outputs: .*row 0 token 0 was never written"),
        ("keeps_on_device", r"does not always write its outputs: .*row 0 token 0 was never written"),
        ("crashes", r"crashed: its process died of SIGSEGV"),
        ("exits", r"crashed: its process ended with exit code 7; its last line of output: last words"),
    ],
)
def test_faults(name: str, said: str) -> None:
    """Each is reported in one line, and the next call finds a fresh process. Bad writes: see test_foreign_apart."""
    kernel = opened(name)
    rows, x = operands()
    weights = kernel.upload(FORMATS["Q4_0"], rows)
    for _ in range(2):
        with pytest.raises(KernelFault, match=said) as caught:
            kernel.product(weights, x)
        assert len(str(caught.value).splitlines()) == 1
    kernel.close()


def test_an_endless_loop() -> None:
    """Ends at the time limit of a call, which is not that of starting; after three the kernel is not run again."""
    kernel = opened("hangs", 0.5)
    rows, x = operands()
    said = [*["did not return within 0.5 s"] * 3, "was not run: it exceeded the time limit 3 times"]
    for n, words in enumerate(said, 1):  # a product of as many rows is not tried again anyway
        with pytest.raises(KernelFault, match=words):
            kernel.product(kernel.upload(FORMATS["Q4_0"], rows[:n]), x)
    kernel.close()


def test_a_product_that_hung_is_not_tried_again_and_others_are() -> None:
    """Of as many rows and columns, with whatever tokens; what was not run is no fault of the kernel."""
    kernel = opened("hangs_for_768_rows", 1.0)
    rows, x = operands()
    wide = np.tile(rows, (110, 1))[:768]
    weights, large = (kernel.upload(FORMATS["Q4_0"], of) for of in (rows, wide))
    with pytest.raises(KernelFault, match="did not return within 1 s") as caught:
        kernel.product(large, x)
    assert not isinstance(caught.value, NotRun)
    for tokens in (1, len(x)):
        with pytest.raises(NotRun, match="was not run: it exceeded the time limit at M=5, N=768, K=96 before"):
            kernel.product(large, x[:tokens])
        assert kernel.product(weights, x[:tokens]).shape == (tokens, N)
    kernel.close()
    result = RungResult(name="layers")
    for error in (NotRun("was not run"), NotRun("was not run"), KernelFault("crashed")):
        result.fail(Failure.of(error, f"a.weight: {error}", "a.weight"))
    assert (result.n_failures, result.blamed, len(result.failures)) == (1, {"kernel": 1}, 1)
    assert [(u.title, u.why, u.tensor, u.culprit) for u in result.unverified] == [
        ("2 products of a.weight", "was not run", "a.weight", "coverage")
    ]


def test_what_the_process_says_is_not_trusted(tmp_path: Path) -> None:
    """A kernel that writes to the socket itself."""
    (tmp_path / "k.py").write_text(
        "import os, sys\nfrom gguf_verify.kernels.foreign.api import kernel\n@kernel(['Q4_0'], 'q8_1')\n"
        "def k(w, x, shape):\n    os.write(int(sys.argv[1]), b'\\x7f\\xff\\xff\\xff' * 4)\n"
    )
    kernel = open_foreign(f"{tmp_path / 'k.py'}:k", CpuHost(1), 20.0)
    rows, x = operands()
    with pytest.raises(KernelFault, match=r"sent an answer that is not valid$"):
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()


def test_a_crash_does_not_end_the_run() -> None:
    """attn_k has 128 rows, attn_q 256: one fails and is named, the other is verified."""
    report = verified(f"{KERNELS}:crashes_for_128_rows", "layers", "tokens", tensor=r"blk\.0\.attn_[qk]\.")
    layers, tokens = report.rungs
    assert report.exit_code == 1
    assert [f.what for f in layers.failures] == ["blk.0.attn_k.weight: the kernel crashed: its process died of SIGSEGV"]
    assert [d.tensor for d in layers.details] == ["blk.0.attn_q.weight"]
    assert [f.what for f in tokens.failures] == [f.what for f in layers.failures]
    assert tokens.checked["GEMMs grafted"] == 1


@pytest.mark.parametrize(
    ("name", "said"), [("nan", "the output is NaN"), ("partial", "row 255 .*the output was never written")]
)
def test_wrong_outputs(name: str, said: str) -> None:
    report = verified(f"{KERNELS}:{name}", "layers")
    assert report.exit_code == 1
    of_kernel = [f.what for f in report.rungs[0].failures if f.what.startswith("kernel")]
    assert of_kernel
    assert all(re.search(said, what) for what in of_kernel)


def test_a_function_of_this_process() -> None:
    """The Python API, all rungs; what the kernel does, it does in a copy of this process."""
    seen = []

    def counting(*arguments: Any) -> Any:
        seen.append(os.getpid())
        return foreign_kernels.right(*arguments)

    counting.formats, counting.semantics = ["Q4_0"], "q8_1"  # type: ignore[attr-defined]
    report = verified(counting, "blocks", "layers", "tokens")
    assert report.exit_code == 0, report
    assert report.environment.kernel.name == "counting"
    assert seen == []


@pytest.mark.parametrize(("name", "code"), [("as_mmq", 0), ("as_q8_1", 1)])
def test_the_declared_semantics_is_the_one_that_judges(name: str, code: int) -> None:
    """MMQ's arithmetic is right under its own name, and wrong under another."""
    assert verified(f"{KERNELS}:{name}").exit_code == code


class _Ordered(foreign_kernels.Plain):
    ordered = True


def test_a_declared_order_is_judged_by_its_bits() -> None:
    """A BLAS has an order of its own."""
    report = verified(_Ordered(), "layers")
    assert report.exit_code == 1
    assert any("does not have the bits of the declared order" in f.what for f in report.rungs[0].failures)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"formats": ["Q4_9"]}, "format 'Q4_9' is not one of"),
        ({"formats": []}, "declares no formats"),
        ({"formats": "Q4_0"}, "formats is not a list of strings"),
        ({"semantics": "w4a8"}, "semantics 'w4a8' is not one of f32, f32_apart, q8_1, "),
        ({"semantics": "q8_1_half", "ordered": True}, "the order of q8_1_half is not known"),
        ({"semantics": None, "activations": "mmq_d4", "term": "mmq", "formats": ["Q5_1"]}, "has no sum s, which Q5_1"),
        (
            {"semantics": None, "activations": "mmq_d4", "term": "mmq", "formats": ["Q5_1"], "takes": "float16"},
            "has no sum s, which Q5_1",
        ),
        ({"pack": 3}, "its pack is not callable"),
        ({"out": "yes"}, "out must be True or False"),
    ],
)
def test_wrong_declarations(attributes: dict[str, Any], said: str) -> None:
    wrong = type("Wrong", (foreign_kernels.Plain,), attributes)()
    with pytest.raises(UsageError, match=said):
        open_foreign(wrong, CpuHost(1))


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        (None, "gemm", r"foreign\.py is not a file$"),
        ("", "gemm", r"foreign\.py has no gemm; it has no function$"),
        ("gemm = 3", "gemm", "it is of type int, which is not callable"),
        ("import no_such_module", "gemm", "cannot be imported: ModuleNotFoundError: No module named"),
        ("1 +", "gemm", "cannot be imported: SyntaxError"),
        ("import sys; sys.exit(0)", "gemm", "cannot be imported: SystemExit"),
        ("import os; os.abort()", "gemm", "cannot be started: the kernel crashed: its process died of SIGABRT"),
        ("def gemm(): pass", "gemm", "it declares no formats"),
        ("gemm = 3", "", r"is neither FILE\.py:NAME nor FILE\.cu:SYMBOL"),
    ],
)
def test_what_is_no_kernel(tmp_path: Path, source: str | None, name: str, said: str) -> None:
    if source is not None:
        (tmp_path / "foreign.py").write_text(source)
    with pytest.raises(UsageError, match=said) as caught:
        open_foreign(f"{tmp_path / 'foreign.py'}:{name}", CpuHost(1), 20.0)
    assert len(str(caught.value).splitlines()) == 1


def test_an_import_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "LEAST_START", 1.0)
    (tmp_path / "foreign.py").write_text("while True: pass")
    with pytest.raises(UsageError, match="did not start within 2 s"):
        open_foreign(f"{tmp_path / 'foreign.py'}:gemm", CpuHost(1), 0.2)


def test_an_import_may_take_longer_than_a_call(tmp_path: Path) -> None:
    (tmp_path / "foreign.py").write_text(
        "import time\ntime.sleep(1.5)\nfrom gguf_verify.kernels.foreign.api import kernel\n@kernel(['Q4_0'], 'f32')\n"
        "def gemm(w, x, shape): ...\n"
    )
    open_foreign(f"{tmp_path / 'foreign.py'}:gemm", CpuHost(1), 0.5).close()


def test_identified() -> None:
    """A kernel that computes another definition than it declares."""
    options = Options(probes="brief", progress=False, tensor="blk.0.attn_q")
    found = identify_model(Q4_0, f"{KERNELS}:drops_s", CpuHost(1), options)
    assert found.exit_code == 1
    kernels = [p for p in found.products if p.who != "llama.cpp"]
    assert kernels
    assert not any(p.right for p in kernels)
    right = identify_model(Q4_0, f"{ROOT / 'examples' / 'numpy_q4_0.py'}:gemm", CpuHost(1), options)
    assert right.exit_code == 0
    assert all(p.right for p in right.products)


def test_diagnoses_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says nothing is tried three times in a run of each rank of calls: own products, and other shapes."""
    tried: list[int] = []

    def nothing(*_: object) -> object:
        tried.append(1)
        return SimpleNamespace(wrong=0)

    monkeypatch.setattr(replay, "diagnose_kernel", nothing)
    # experiments take long, and only diagnoses are counted
    monkeypatch.setattr(Experiments, "settled", lambda self, found: found)
    options = Options(probes="brief", progress=False, tensor=r"[01]\.attn_[qk]", prompt="The", n_predict=1)
    report = verify(Q4_0, f"{KERNELS}:drops_s", CpuHost(1), ["layers"], options)
    assert report.exit_code == 1
    assert len(tried) == 6


def test_command_line(tmp_path: Path) -> None:
    assert_one_line(cli(Q4_0, "--kernel", tmp_path / "nope.py:gemm"), 2, r"nope\.py is not a file")
    arguments = (Q4_0, "--tensor", "blk.0.attn_k", "--rungs", "blocks", "--host", "cpu", "-t", 1)
    done = cli(*arguments, "--kernel", f"{KERNELS}:raises")
    assert done.returncode == 1
    assert "blk.0.attn_k.weight: the kernel raised ValueError: first line" in flat(done.stdout)
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("example", ["numpy_q4_0.py:gemm", "cuda_q4_0.cu:gemm"])
def test_the_header_says_where_it_runs(example: str) -> None:
    """By its file and symbol, and in lines that fit a terminal; the last line is one line, however long."""
    options = Options(probes="brief", progress=False, tensor="blk.0.attn_k")
    report = verify(Q4_0, f"{EXAMPLES / example}", CpuHost(1), ["blocks"], options)
    shown = text_of(Kind.RUN, report, width=80, detail=2)
    # this machine's processor and compiler may have names of any length, and are wrapped as a whole
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    header, whole = f" {flat(shown)}".split(" versions ")
    assert f" kernel {example}, declares " in header
    assert f" kernel {example} · declares " in whole
    assert str(EXAMPLES) not in shown
    for part, end in ((header, " file "), (whole, f" kernel {example} · ")):
        host = part[part.index(" host ") :]
        host = host[: host.index(end)]
        assert "in its own process" in host
        assert ("cpu:" in host) == example.startswith("cuda")
    assert ("chosen by the kernel" in host) == example.startswith("numpy")
    assert report.environment.options.kernel_time_limit == 60


@pytest.mark.parametrize("example", ["numpy_q4_0.py:gemm", "cuda_q4_0.cu:gemm", "torch_q4_0.py:gemm"])
def test_examples(example: str) -> None:
    if example.startswith("torch"):
        need("torch")
    report = verified(f"{EXAMPLES / example}", "blocks", "layers", "tokens")
    assert report.exit_code == 0, report.rungs
    assert [r.verdict for r in report.rungs] == ["passed"] * 3


def test_the_triton_example_in_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which runs it on the CPU, too slowly for a whole run."""
    need("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    kernel = open_foreign(f"{EXAMPLES / 'triton_q4_0.py'}:gemm", CpuHost(1))
    assert multiplied(kernel)
    kernel.close()


def test_an_example_without_its_library() -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed")
    done = cli_here(Q4_0, "--kernel", f"{EXAMPLES / 'triton_q4_0.py'}:gemm")
    assert_one_line(
        done,
        2,
        r"triton_q4_0\.py cannot be imported: ModuleNotFoundError: No module named 'torch'; \S+ looked for it in",
    )


@pytest.mark.parametrize(
    ("example", "name", "old", "new"),
    [
        ("numpy_q4_0.py", "gemm", "- 8 * s[:, None]", "- 7 * s[:, None]"),
        ("cuda_q4_0.cu", "gemm", "xb.qs[j + 16]", "xb.qs[j + 15]"),
        ("torch_q4_0.py", "gemm", "[qs & 15, qs >> 4]", "[qs >> 4, qs & 15]"),
    ],
)
def test_a_fault_in_an_example(tmp_path: Path, example: str, name: str, old: str, new: str) -> None:
    if example.startswith("torch"):
        need("torch")
    report = verified(f"{altered(tmp_path, example, old, new)}:{name}")
    assert [r.verdict for r in report.rungs] == ["failed", "failed"]
    first = report.rungs[1].failures[0]
    assert first.tensor == "blk.0.attn_q.weight"
    assert first.block is not None
    assert "is outside the bound" in first.what


def test_an_endless_loop_dies_with_the_harness() -> None:
    """Also where nobody is left to end it."""
    code = f"""
import numpy as np
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
kernel = open_foreign({f"{KERNELS}:hangs"!r}, CpuHost(1))
print(kernel._conversation.process.pid, flush=True)
kernel.product(kernel.upload(FORMATS["Q4_0"], np.zeros((1, 18), np.uint8)), np.zeros((1, 32), np.float32))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        time.sleep(1)
        assert Path(f"/proc/{pid}").exists()
        harness.kill()
    assert gone([pid])


def test_no_process_is_left() -> None:
    kernel = opened("right")
    assert kernel._conversation.process is not None
    pid = kernel._conversation.process.pid
    kernel.close()
    assert not Path(f"/proc/{pid}").exists()
