"""One failing call made again, alone: the same bits, in whichever rung and of whichever kind it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.captured import judge_case
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.api import kernel
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.results.calls import Call
from gguf_verify.results.failures import Failure
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.support.command_line import pattern_of
from gguf_verify.support.errors import UsageError
from gguf_verify.verification import verify
from tests.rungs.rungs.test_envelope import product
from tests.support.tools import FIXTURES, ROOT, command_here

MODEL = FIXTURES / "tiny-Q4_0.gguf"
OPTIONS = Options(prompt="Once upon a time", n_predict=2, tensor=r"blk\.1\.attn_k", threads=2, probes="brief")


def wrong_where(what: Callable[[Any], bool]) -> Any:
    """A kernel whose first output is wrong in some calls."""

    @kernel(formats=["Q4_0"], semantics="q8_1")
    def tried(weights: Any, activations: Any, shape: Any) -> Any:
        y = product(weights, activations, shape)
        if y.size and what(shape):
            y[-1, 0] += 1
        return y

    return tried


class _Given(ShippedKernel):
    """A shipped kernel that is wrong where it is given blocks."""

    def gemm(self, weights: Any, x: Any) -> Any:
        made = super().gemm(weights, x)
        made[0, 0] += 1
        return made


class _OtherQuantizer(ShippedKernel):
    """A shipped kernel whose quantizer sets a code of one token wrong, for 7 tokens."""

    def quantize(self, x: Any) -> Any:
        made = super().quantize(x)
        if len(x) == 7:
            made[3, 20] ^= 1
        return made


def _numbers(failure: Failure) -> Any:
    """All of a failure; numbers by their bits."""
    bits = [None if v is None else np.float64(v).tobytes() for v in (failure.got, failure.expected, failure.bound)]
    return failure.what, failure.tensor, failure.row, failure.token, failure.block_hex, bits, failure.call


def repeated(report: Report, candidate: Any, rung: str, failure: Failure) -> Report:
    options = report.environment.options
    assert failure.call is not None
    tensor = options.tensor if rung == "tokens" else pattern_of(failure.tensor)
    return verify(MODEL, candidate, "cpu", [rung], replace(options, tensor=tensor, only_call=failure.call.id))


KINDS: dict[str, tuple[str, Callable[[], Any]]] = {
    "block": ("blocks", lambda: wrong_where(lambda s: s.k == 32)),
    "own": ("layers", lambda: wrong_where(lambda s: s.m == 12 and s.k == 256)),
    "shared": ("layers", lambda: _Given(KERNELS["q8_1_naive"], CpuHost(2))),
    "other-m": ("layers", lambda: wrong_where(lambda s: (s.m, s.k) == (7, 256))),
    "cut": ("layers", lambda: wrong_where(lambda s: s.k == 224)),
    "probe": ("layers", lambda: wrong_where(lambda s: s.k == 9600)),
    "quantizer": ("layers", lambda: _OtherQuantizer(KERNELS["q8_1_naive"], CpuHost(2))),
    "graft": ("tokens", lambda: wrong_where(lambda s: s.m == 13)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_call_gives_the_same_bits(kind: str) -> None:
    rung, make = KINDS[kind]
    candidate = make()
    report = verify(MODEL, candidate, "cpu", [rung], OPTIONS)
    found = [f for _, f in report.failures if f.call is not None and f.call.kind == kind]
    assert found, report
    failure = found[0]
    again = repeated(report, candidate, rung, failure)
    assert again.exit_code == 1
    assert _numbers(failure) in [_numbers(f) for _, f in again.failures]
    assert {f.call for _, f in again.failures} == {failure.call}
    assert not again.rungs[0].envelopes
    assert f"only one call was made, {failure.call.id} (--only-call)" in again.rungs[0].notes[0]


def test_a_call_that_raises_is_known_too() -> None:
    @kernel(formats=["Q4_0"], semantics="q8_1")
    def tried(weights: Any, activations: Any, shape: Any) -> Any:
        if shape.m == 5:
            raise ValueError("five tokens")
        return product(weights, activations, shape)

    report = verify(MODEL, tried, "cpu", ["layers"], OPTIONS)
    ((_, failure),) = report.failures
    assert failure.call == Call(kind="other-m", m=5, n=128, k=256)
    again = repeated(report, tried, "layers", failure)
    assert [f.what for _, f in again.failures] == [failure.what]


def test_a_right_call_is_right_and_no_call_is_no_pass() -> None:
    candidate = wrong_where(lambda s: s.m == 7)
    right = verify(MODEL, candidate, "cpu", ["layers"], replace(OPTIONS, only_call="other-m,m=8,n=128,k=256"))
    assert right
    assert right.rungs[0].checked["calls made alone"] == 1
    assert not right.rungs[0].gemms
    none = verify(MODEL, candidate, "cpu", ["layers"], replace(OPTIONS, only_call="own,use=7"))
    assert none.exit_code == 5
    assert "no such call" in none.rungs[0].unverified[0].why


@pytest.mark.parametrize("call", ["own,m=7", "shared,n=127,k=256", "reference,k=288", "other-m,m=8,n=129,k=256"])
def test_another_call_is_not_made_in_its_place(call: str) -> None:
    """Sizes that no product of this run has, as of another prompt or another model."""
    none = verify(MODEL, "q8_1_naive", "cpu", ["layers"], replace(OPTIONS, only_call=call))
    assert none.exit_code == 5
    assert not none


@pytest.mark.parametrize("rungs", ["blocks,layers", "bytes,blocks,layers,tokens"])
def test_a_call_belongs_to_one_rung(rungs: str) -> None:
    with pytest.raises(UsageError, match="--rungs"):
        verify(MODEL, "q8_1_naive", "cpu", rungs.split(","), replace(OPTIONS, only_call="own"))


KERNEL = """from gguf_verify import kernel
from tests.rungs.rungs.test_envelope import product


@kernel(formats=["Q4_0"], semantics="q8_1")
def gemm(weights, activations, shape):
    y = product(weights, activations, shape)
    if shape.m == 7 and y.size:
        y[3, 5] += 1
    return y
"""


def test_what_is_printed_can_be_pasted(tmp_path: Path) -> None:
    """The line of a checkout, with a prompt that a shell would take apart; and the case that it saves."""
    source, case = tmp_path / "my kernel.py", tmp_path / "case"
    source.write_text(KERNEL)
    prompt = 'it\'s "one" $HOME\nline'
    command = [
        "bash", "-c", 'python scripts/verify_model.py "$@"', "_", str(MODEL), "--kernel", f"{source}:gemm",
        "--host", "cpu", "--rungs", "layers", "--tensor", "0.attn_k", "-p", prompt, "-n", "2", "--effort", "quick",
        "--save-case", str(case),
    ]  # fmt: skip
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{os.environ['PYTHONPATH']}",
    }  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 1, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("repeat with: "))
    assert "--only-call other-m,m=7" in line
    assert "__main__" not in line
    assert "--save-case" not in line
    again = subprocess.run(
        ["bash", "-c", f"{line.removeprefix('repeat with: ')} --json {tmp_path / 'again.json'}"], cwd=ROOT,
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert again.returncode == 1, again.stderr
    made = json.loads((tmp_path / "again.json").read_text())
    assert made["environment"]["options"]["prompt"] == prompt
    assert [f["call"]["m"] for f in made["rungs"][0]["failures"]] == [7]
    assert made["rungs"][0]["failures"][0]["got"] == float(np.load(case / "y.npy")[3, 5])


# ---- cases -----------------------------------------------------------------------------------------------------------


def saved(folder: Path, candidate: Any, rung: str = "layers") -> Report:
    return verify(MODEL, candidate, "cpu", [rung], replace(OPTIONS, save_case=str(folder)))


def test_a_case_is_checked_by_numpy_alone(tmp_path: Path) -> None:
    case = tmp_path / "case"
    report = saved(case, wrong_where(lambda s: (s.m, s.k) == (7, 256)))
    assert "the first wrong product is in" in report.rungs[-1].notes[-1]
    ((_, failure),) = report.failures
    assert {p.name for p in case.iterdir()} == {
        "x.npy", "taken.npy", "w.bin", "y.npy", "expected.npy", "bound.npy", "case.json", "README.md", "check.py",
    } - {"taken.npy"}  # fmt: skip
    assert (case / "w.bin").stat().st_size == 128 * 256 // 32 * 18
    done = subprocess.run(
        [sys.executable, "-I", str(case / "check.py")], capture_output=True, text=True, timeout=60, check=True, cwd="/",
    )  # fmt: skip
    assert "gguf" not in (case / "check.py").read_text()
    assert len((case / "check.py").read_text().splitlines()) == 10
    assert "1 of 896 outputs are outside the bound; the worst is token 6, row 0" in done.stdout
    assert f"got {failure.got:.9g}, expected {failure.expected:.9g}" in done.stdout
    readme = (case / "README.md").read_text()
    for words in ("M = 7 tokens, N = 128 rows, K = 256", "Q4_0", "`q8_1`", "x.npy", "sha256"):
        assert words in readme
    judged = judge_case(case)
    assert (judged.exit_code, judged.wrong, judged.definition) == (1, 1, "q8_1")
    assert judged.first is not None
    assert (judged.first.token, judged.first.row, judged.first.got) == (6, 0, failure.got)
    done_here = command_here("judge", case)
    assert done_here.returncode == 1
    assert "FAILED 1 of 896 outputs" in done_here.stdout


def test_activations_that_were_given_as_blocks_are_kept(tmp_path: Path) -> None:
    case = tmp_path / "case"
    case.mkdir()  # an empty folder is as good as none
    report = saved(case, _Given(KERNELS["q8_1_naive"], CpuHost(2)))
    assert report.exit_code == 1
    taken, x = np.load(case / "taken.npy"), np.load(case / "x.npy")
    assert taken.dtype == np.uint8
    assert taken.shape == (12, 256 // 32 * 36)
    assert x.shape == (12, 256)
    assert (case / "ordered.npy").exists() == ("declared order" in (case / "check.py").read_text())
    judged = judge_case(case)
    assert (judged.exit_code, judged.wrong) == (1, 1)


def test_a_large_product_is_cut_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gguf_verify.verification import cases

    monkeypatch.setattr(cases, "MOST_BYTES", 20_000)
    case = tmp_path / "case"
    saved(case, wrong_where(lambda s: (s.m, s.k) == (7, 256)))
    described = json.loads((case / "case.json").read_text())
    assert described["of"] == {"m": 7, "n": 128}
    assert 0 in described["rows"]
    assert 6 in described["tokens"]
    assert len(described["rows"]) < 128
    assert "cut down from 7 tokens and 128 rows" in (case / "README.md").read_text()
    assert judge_case(case).wrong == 1


def test_where_a_case_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    (tmp_path / "file").write_text("kept")
    for folder in (tmp_path / "full", tmp_path / "file", tmp_path / "none" / "case"):
        with pytest.raises(UsageError, match="--save-case"):
            saved(folder, "q8_1_naive")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine"]


def test_nothing_wrong_is_said_and_nothing_written(tmp_path: Path) -> None:
    report = saved(tmp_path / "case", wrong_where(lambda s: False), "blocks")
    assert report
    assert "no case was written" in report.rungs[-1].notes[-1]
    assert not (tmp_path / "case").exists()
