"""llama.cpp's CUDA backend as the reference, without a GPU: definitions on measured outputs, its quantizers, how its
activations are revealed, and refusals. With a GPU: `test_gpu_reference.py`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.formats.q8_0 import Q8_0
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.q8_1_d4 import Q8_1_D4
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.semantics import cuda
from gguf_verify.semantics.cuda import NoDefinition, llama_cuda_semantics
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.definitions.mmq import MMQ, encode_mmq
from gguf_verify.semantics.definitions.mmq_d4 import MMQ_D4, encode_mmq_d4
from gguf_verify.semantics.definitions.q8_0_cpu import encode_q8_0_cpu
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.definitions.q8_1_half import Q8_1_HALF
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.fast_math import ambiguous_codes, as_q8_1, compare_activations
from gguf_verify.semantics.gates import judge
from gguf_verify.support.array_types import Bytes, Floats
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.verification import verify
from tests.support import graphs
from tests.support.tools import FIXTURES, ROOT

#: Measured: `ggml_mul_mat` of llama.cpp v0.5.0's CUDA backend on an H200, weights of random bytes with scales of a
#: usual size, Gaussian activations; few: some of 8 tokens, many: some of 64; and the activations as it quantized them.
MEASURED = dict(np.load(Path(__file__).parents[2] / "data" / "llama_cuda_h200.npz"))
TOKENS = {"few": 8, "many": 64}


def pairs() -> list[tuple[str, str]]:
    out = []
    for name in sorted({key.split("/")[0] for key in MEASURED if "/" in key}):
        for tokens in TOKENS:
            try:
                llama_cuda_semantics(FORMATS[name], TOKENS[tokens])
            except NoDefinition:
                continue
            out.append((name, tokens))
    return out


def revealed(semantics: Semantics) -> Bytes:
    return MEASURED[{"q8_1_half": "q8_1", "q8_1_delta": "q8_1"}.get(semantics.name, semantics.name)]


# ---- measured outputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "tokens"), pairs())
def test_measured_outputs(name: str, tokens: str) -> None:
    """Correct under the definition in the source; wrong with one code of each token changed by one."""
    fmt = FORMATS[name]
    semantics = llama_cuda_semantics(fmt, TOKENS[tokens])
    w, y, x = MEASURED[f"{name}/w"], MEASURED[f"{name}/{tokens}"], revealed(semantics)
    judgement = judge(y, product(semantics, fmt, w, x))
    assert judgement.passed
    assert judgement.utilisation < 0.1
    assert judgement.nmse < 1e-13
    assert semantics.activations is not None
    blocks = w[:1].reshape(-1, fmt.block_bytes)
    codes = semantics.term.codes(fmt, blocks).astype(float)
    values = codes * np.repeat(fmt.scales(blocks), fmt.group, axis=1)
    view = semantics.activations.view(x.reshape(len(x), -1, 36)).copy()
    weighed = np.abs(values).reshape(-1, 32) * view["d"][..., None]
    for m in range(len(x)):
        at = (m, *np.unravel_index(weighed[m].argmax(), weighed[m].shape))
        view["qs"][at] += -1 if view["qs"][at] > 0 else 1
    wrong = judge(y, product(semantics, fmt, w, view.view(np.uint8).reshape(x.shape)))
    assert wrong.bad[:, 0].all()


@pytest.mark.parametrize(
    ("name", "tokens", "wrong"),
    [
        ("Q4_0", "few", MMQ), ("Q4_0", "many", Q8_1_RAW), ("Q5_0", "few", MMQ_D4), ("Q5_0", "many", Q8_1_RAW),
        ("Q4_1", "few", Q8_1_RAW), ("Q4_1", "many", Q8_1_HALF), ("Q5_1", "few", Q8_1_RAW), ("Q5_1", "many", Q8_1_HALF),
        ("Q8_0", "few", MMQ_D4), ("Q8_0", "many", Q8_1_RAW), ("Q4_K", "many", Q8_1_RAW), ("Q6_K", "many", MMQ),
    ],
    ids=lambda v: v if isinstance(v, str) else v.name,
)  # fmt: skip
def test_measured_outputs_tell_definitions_apart(name: str, tokens: str, wrong: Semantics) -> None:
    """The other definitions of the backend, on activations by their own encoders, fail."""
    y, w, x = (MEASURED[key] for key in (f"{name}/{tokens}", f"{name}/w", f"x_{tokens}"))
    assert not judge(y, product(wrong, FORMATS[name], w, wrong.bytes_of(x))).passed


def test_measured_activations() -> None:
    """The quantizers are the encoders, except for codes that fast math explains."""
    for name, x in (("q8_1", "x_few"), ("mmq", "x_many"), ("mmq_d4", "x_many")):
        agreement = compare_activations(SEMANTICS[name], MEASURED[x], MEASURED[name])
        assert agreement.unexplained is None
        assert agreement.codes >= 1024 * (len(MEASURED[x]) - 1)
        assert agreement.differing <= agreement.ambiguous <= agreement.codes / 1000


# ---- which definition ------------------------------------------------------------------------------------------------


def test_dispatch() -> None:
    expected = {
        "Q4_0": ("q8_1", "mmq"), "Q4_1": ("q8_1_half", "mmq"), "Q5_0": ("q8_1", "mmq_d4"), "Q5_1": ("q8_1_half", "mmq"),
        "Q8_0": ("q8_1", "mmq_d4"), "Q6_K": ("q8_1", "mmq_d4"), "Q4_K": ("q8_1", "mmq"),
    }  # fmt: skip
    for name, (few, many) in expected.items():
        for m in (1, 8):
            assert llama_cuda_semantics(FORMATS[name], m).name == few
        for m in (9, 512):
            assert llama_cuda_semantics(FORMATS[name], m).name == many
    assert llama_cuda_semantics(FORMATS["Q4_K"], 6, sm=120) is MMQ
    assert llama_cuda_semantics(FORMATS["Q4_K"], 6, sm=90) is Q8_1_RAW
    assert llama_cuda_semantics(FORMATS["Q3_K"], 6, sm=86, experts=True) is MMQ_D4
    assert llama_cuda_semantics(FORMATS["Q3_K"], 6, sm=90, experts=True) is Q8_1_RAW


@pytest.mark.parametrize(
    ("fmt", "m", "sm", "said"),
    [
        (ELEMENTS["F16"], 1, 90, "F16: .* by cuBLAS"),
        (FORMATS["IQ2_XXS"], 1, 90, "drops the remainder"),
        (FORMATS["IQ1_S"], 9, 90, "rounds a part of the scale"),
        (FORMATS["Q2_K"], 9, 90, "sums activations by sixteens"),
        (FORMATS["IQ1_M"], 9, 90, "MMQ does not exist"),
        (FORMATS["TQ1_0"], 1, 90, "no MMVQ of TQ1_0"),
        (FORMATS["TQ2_0"], 9, 90, "no MMQ of TQ2_0"),
        (FORMATS["MXFP4"], 9, 120, "4-bit activations"),
        (Q4_0, 9, 70, "before compute capability 7.5"),
    ],
)
def test_unknown_definitions_have_a_reason(fmt: object, m: int, sm: int, said: str) -> None:
    with pytest.raises(NoDefinition, match=said):
        llama_cuda_semantics(fmt, m, sm)  # type: ignore[arg-type]


def test_every_format_has_a_definition_or_a_reason() -> None:
    for fmt in FORMATS.values():
        for m in (1, 9):
            try:
                semantics = llama_cuda_semantics(fmt, m)
            except NoDefinition:
                continue
            assert semantics.cuda_path in ("MMVQ", "MMQ")
            semantics.uses_sum(fmt)  # no pair without a definition


# ---- quantizers of fast math -----------------------------------------------------------------------------------------

#: Four ulps.
WINDOW = 2.0**-21
ENCODERS: dict[str, Callable[[Floats], Bytes]] = {"q8_1": encode_q8_1, "mmq": encode_mmq, "mmq_d4": encode_mmq_d4}


def near_a_half(distance: float) -> Floats:
    """One block whose value 5 lies `distance`, relative, above a code and a half: max is 127."""
    x = np.linspace(-20, 20, 32, dtype=np.float32)[None]
    x[0, 0], x[0, 5] = 127, 63.5 * (1 + distance)
    return x


def with_codes(name: str, x: Floats, change: Callable[[np.ndarray], None]) -> Bytes:
    raw = ENCODERS[name](x)
    fmt = SEMANTICS[name].activations
    assert fmt is not None
    view = fmt.view(raw.reshape(len(x), -1, 36)).copy()
    change(view)
    return view.view(np.uint8).reshape(raw.shape)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_ambiguous_code_is_excused_by_one_step_and_no_more(name: str) -> None:
    semantics, inside, outside = SEMANTICS[name], near_a_half(-WINDOW / 4), near_a_half(-WINDOW * 2)
    assert ambiguous_codes(inside).sum() == 1
    assert ambiguous_codes(inside)[0, 5]
    assert not ambiguous_codes(outside).any()

    def step(by: int) -> Callable[[np.ndarray], None]:
        return lambda view: view["qs"].__setitem__((0, 0, 5), view["qs"][0, 0, 5] + by)

    agreement = compare_activations(semantics, inside, with_codes(name, inside, step(1)))
    assert (agreement.ambiguous, agreement.differing, agreement.unexplained) == (1, 1, None)
    assert agreement.per_million == 1e6 / 32
    two = compare_activations(semantics, inside, with_codes(name, inside, step(2)))
    assert two.unexplained == (0, 0, "code")
    far = compare_activations(semantics, outside, with_codes(name, outside, step(1)))
    assert far.unexplained == (0, 0, "code")


@pytest.mark.parametrize("name", ENCODERS)
def test_scales_and_sums_must_be_explained(name: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 64)).astype(np.float32)
    semantics = SEMANTICS[name]
    same = compare_activations(semantics, x, ENCODERS[name](x))
    assert (same.codes, same.differing, same.differing_scales, same.unexplained) == (128, 0, 0, None)

    def scale(view: np.ndarray) -> None:
        bits = view["d"].view(np.uint32 if name == "mmq_d4" else np.uint16)
        bits[1, 1] += 9 if name == "mmq_d4" else 1

    assert compare_activations(semantics, x, with_codes(name, x, scale)).unexplained == (1, 1, "scale")
    if name != "mmq_d4":

        def total(view: np.ndarray) -> None:
            view["s"].view(np.uint16)[1, 0] ^= 1

        assert compare_activations(semantics, x, with_codes(name, x, total)).unexplained == (1, 0, "sum")


def test_a_half_scale_may_be_the_neighbour_at_a_midpoint() -> None:
    d = np.float32(1) + np.float32(2.0**-11)  # between two halves
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = d * np.float32(127)
    below, above = (np.float16(1), np.float16(1 + 2.0**-10))

    def put(value: np.float16) -> Bytes:
        return with_codes("q8_1", x, lambda view: view["d"].__setitem__((0, 0), value))

    both = [compare_activations(Q8_1_RAW, x, put(v)) for v in (below, above)]
    assert [a.unexplained for a in both] == [None, None]
    assert sorted(a.differing_scales for a in both) == [0, 1]
    assert compare_activations(Q8_1_RAW, x, put(np.float16(1 + 2.0**-9))).unexplained == (0, 0, "scale")


def test_codes_under_a_zero_scale_mean_nothing() -> None:
    x = np.full((1, 32), 2.0**-25, np.float32)
    theirs = with_codes("q8_1", x, lambda view: view["qs"].__setitem__((0, 0), 0))
    agreement = compare_activations(Q8_1_RAW, x, theirs)
    assert (agreement.codes, agreement.unexplained) == (0, None)


def test_as_q8_1() -> None:
    x = np.random.default_rng(4).standard_normal((3, 96)).astype(np.float32)
    got, expected = (Q8_1.view(raw.reshape(3, 3, 36)) for raw in (as_q8_1(encode_mmq_d4(x), x), encode_q8_1(x)))
    assert (got["s"] == expected["s"]).all()
    assert (got["d"] == Q8_1_D4.view(encode_mmq_d4(x).reshape(3, 3, 36))["d"].astype(np.float16)).all()
    assert (got["qs"] == Q8_1.view(encode_mmq(x).reshape(3, 3, 36))["qs"]).all()


# ---- activations revealed by products --------------------------------------------------------------------------------

_REVEAL = """
import sys
import numpy as np
from gguf_verify.llama import ggml
from gguf_verify.llama.worker import cuda_device
ggml.ggml_cpu_init()
cuda_device.compute_capability = lambda number: 90
cpu = cuda_device.CudaDevice(ggml.ggml_backend_dev_by_type(ggml.DEVICE_CPU))
x, w4, w8 = (np.load(sys.argv[1])[n] for n in ("x", "w4", "w8"))
np.savez(sys.argv[2], mmq=cpu.activations("mmq", x), mmq_d4=cpu.activations("mmq_d4", x),
         few=cpu.activations("mmq", x[:2]), y=cpu.multiply(2, w4, x), blocks=cpu.block_products(8, w8, x))
"""


def test_products_reveal_activations(tmp_path: Path) -> None:
    """On the CPU backend, whose quantizer is known from `from_float`: the same codes and scales; 1,100 tokens take more
    than one part."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1100, 4096)).astype(np.float32)
    x[3, :64] = 0
    x[5] *= 2.0**-40  # scales that are no halves
    w4 = Q4_0.encode(rng.standard_normal((5, 128, 32)).astype(np.float32)).reshape(5, -1)
    w8 = Q8_0.encode(rng.standard_normal((5, 128, 32)).astype(np.float32)).reshape(5, -1)
    np.savez(tmp_path / "in.npz", x=x, w4=w4, w8=w8)
    subprocess.run(
        [sys.executable, "-c", _REVEAL, str(tmp_path / "in.npz"), str(tmp_path / "out.npz")], check=True, cwd=ROOT
    )
    out = np.load(tmp_path / "out.npz")
    expected = Q8_0.view(encode_q8_0_cpu(x).reshape(1100, 128, 34))
    for name, fmt in (("mmq", Q8_1), ("mmq_d4", Q8_1_D4)):
        got = fmt.view(out[name].reshape(1100, 128, 36))
        nonzero = expected["d"] != 0
        assert (got["d"] == expected["d"]).all()
        assert (got["qs"] == expected["qs"])[nonzero].all()
    assert (out["few"] == out["mmq"][:2]).all()
    cpu = SEMANTICS["q8_0_cpu"]
    assert judge(out["y"], product(cpu, Q4_0, w4, encode_q8_0_cpu(x))).passed
    assert out["blocks"].shape == (128, 1100, 5)
    column = np.ascontiguousarray(w8[:, 34 * 77 : 34 * 78])
    part = np.ascontiguousarray(x[:, 32 * 77 : 32 * 78])
    assert judge(out["blocks"][77], product(cpu, Q8_0, column, encode_q8_0_cpu(part))).passed


# ---- a run -----------------------------------------------------------------------------------------------------------


def test_without_the_backend_the_run_is_refused(llama: Llama) -> None:
    try:
        llama.start_backend("gpu")
    except EnvironmentFault as fault:
        said = str(fault)
    else:
        pytest.skip("there is a GPU and a llama-cpp-python that uses it")
    assert said == "llama.cpp finds no GPU: there is CPU"
    command = [sys.executable, str(ROOT / "scripts" / "verify_model.py"), str(FIXTURES / "tiny-Q4_0.gguf")]
    run = subprocess.run([*command, "--reference", "gpu"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (3, "")
    assert run.stderr == f"gguf-verify: {said}\n"
    wrong = subprocess.run([*command, "--reference", "tpu"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "--reference: no device is called tpu: there is CPU" in wrong.stderr


#: In llama.cpp's process: its CPU backend stands in for a GPU, with the raw sums of a GPU's quantizer.
_STAND_IN = """
import sys
if any("gguf_verify.llama.worker" in a for a in sys.orig_argv):
    import numpy as np
    from gguf_verify.llama import ggml
    from gguf_verify.llama.worker import cuda_device, products
    from gguf_verify.semantics import cuda
    from gguf_verify.semantics.definitions.mmq import encode_mmq
    from gguf_verify.formats.q8_1 import Q8_1
    products.find_device = lambda reference: ggml.ggml_backend_dev_by_type(ggml.DEVICE_CPU)
    ggml.backend_of, ggml.description_of = lambda device: "CUDA", lambda device: "a stand-in"
    cuda_device.compute_capability = lambda number: 90
    cuda_device.CudaDevice.computed = lambda self, t: {on_gpu}
    sums = lambda self, x: Q8_1.view(encode_mmq(x).reshape(len(x), -1, 36))["s"].astype(np.float32)
    if {raw_sums}:
        cuda_device.CudaDevice._sums = sums
    cuda.mmvq_tokens = lambda *a: {mmvq}
"""


def stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str | Path, on_gpu: bool = True, mmvq: int = 8,
    raw_sums: bool = True,
) -> Report:  # fmt: skip
    (tmp_path / "sitecustomize.py").write_text(_STAND_IN.format(on_gpu=on_gpu, mmvq=mmvq, raw_sums=raw_sums))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(cuda, "mmvq_tokens", lambda *_: mmvq)
    options = Options(probes="brief", n_predict=2, reference="gpu", progress=False, prompt="Once")
    return verify(FIXTURES / model, "q8_1_dp4a", CpuHost(1), ["blocks", "layers", "tokens"], options)


def test_other_definitions_than_the_gpus_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU computes what MMQ would (Q4_0), and not what MMVQ would."""
    report = stand_in(tmp_path, monkeypatch, "tiny-Q4_0.gguf")
    blocks, layers, _ = report.rungs
    assert report.exit_code == 1
    for rung in (blocks, layers):
        assert rung.verdict == "failed"
        assert rung.worst["llama.cpp as q8_1"].utilisation > 10
        assert rung.worst["llama.cpp as mmq"].utilisation < 0.5
        assert rung.worst["kernel"].utilisation < 0.5
        assert any("llama.cpp as q8_1" in f.what for f in rung.failures)
    assert layers.figures["llama.cpp's GEMMs by MMVQ, q8_1"] > 0
    assert layers.figures["llama.cpp's GEMMs by MMQ, mmq"] == 22


def test_what_was_not_judged_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend of MMQ alone everything is right, and MMVQ is missing."""
    report = stand_in(tmp_path, monkeypatch, "tiny-Q4_0.gguf", mmvq=0)
    blocks, layers, tokens = report.rungs
    assert [r.n_failures for r in report.rungs] == [0, 0, 0]
    assert (blocks.verdict, tokens.verdict) == ("passed", "passed")
    assert layers.verdict == "unverified"
    assert {left.why for left in layers.unverified} == {
        "MMVQ was not judged: no product of these graphs takes it there"
    }
    assert layers.figures["gap to llama.cpp as mmq, worst NMSE"] > 1e-6
    assert layers.figures["MMQ's Gaussian codes"] == 1 << 20
    assert report.environment.reference.where.startswith("CUDA on a stand-in")


def test_another_quantizer_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output is right on the bytes that were revealed, but these hold the sums of a CPU."""
    report = stand_in(tmp_path, monkeypatch, "tiny-Q4_0.gguf", mmvq=0, raw_sums=False)
    for rung in report.rungs[:2]:
        assert rung.verdict == "failed"
        assert rung.worst["llama.cpp as mmq"].utilisation < 0.5
        assert all(f.what.startswith("llama.cpp's quantizer (MMQ)") for f in rung.failures)
        assert all("a sum that neither" in f.what for f in rung.failures)


@pytest.mark.parametrize("name", ["moe", "bert", "t5"])
def test_other_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama: Llama, name: str) -> None:
    """Experts, an encoder, an encoder-decoder: each matrix is judged as MMVQ (which the stand-in is not) and as MMQ."""
    path = graphs.MODELS[name](llama, tmp_path / f"{name}.gguf")
    options = Options(probes="brief", n_predict=2, progress=False, prompt="Once")
    alone = verify(path, "q8_1_dp4a", CpuHost(1), ["tokens"], options).rungs[0]
    _, layers, tokens = stand_in(tmp_path, monkeypatch, path).rungs
    if name != "bert":  # the prompt is read again after single tokens of it
        distance = "kernel: max |Δlogit| to llama.cpp"
        assert tokens.figures[distance] == alone.figures[distance]
    assert {n.split(".")[-2] for n in [left.name for left in layers.unverified]} == (
        {"ffn_gate_inp"} if name == "moe" else set()
    )
    assert layers.worst["llama.cpp as q8_1"].utilisation > 10
    assert layers.worst["llama.cpp as mmq"].utilisation < 0.5
    assert layers.worst["kernel"].utilisation < 0.5
    assert not tokens.n_failures


def test_products_that_the_gpu_leaves_to_the_cpu_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = stand_in(tmp_path, monkeypatch, "tiny-Q4_0.gguf", on_gpu=False, mmvq=0)
    layers = report.rungs[1]
    assert layers.verdict == "unverified"
    assert {left.why for left in layers.unverified} == {"llama.cpp's CUDA backend left it to the CPU"}
    assert not layers.checked.get("outputs")


def test_elements_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = stand_in(tmp_path, monkeypatch, "tiny-F16.gguf")
    assert report.exit_code == 5
    for rung in report.rungs:
        assert rung.verdict == "unverified"
    assert all("unsupported with --reference gpu" in why for why in [left.why for left in report.rungs[1].unverified])
    assert len(report.rungs[0].unverified) == len(report.rungs[1].unverified) == 22
