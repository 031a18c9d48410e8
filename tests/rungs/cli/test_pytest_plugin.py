"""`pytest --gguf MODEL.gguf --gguf-kernel …`: one test for each matrix."""

from __future__ import annotations

import glob
import os
import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gguf_verify.pytest_plugin import _Model, _options
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.support.cache import cache_dir
from gguf_verify.support.command_line import pattern_of
from tests.support import records
from tests.support.tools import FIXTURES, ROOT

pytest_plugins = ["pytester"]

KERNELS = ROOT / "tests" / "support" / "foreign_kernels.py"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which pytest does not cut its summary, and the cache of this run: pytester sets another HOME, in
    which all would be compiled again."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_dir().parent))


def model_seen_by(pytester: pytest.Pytester) -> str:
    """The model's path in the ids of its tests."""
    return os.path.relpath(FIXTURES / "tiny-Q4_0.gguf", pytester.path)


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    options = (f"--gguf={FIXTURES / 'tiny-Q4_0.gguf'}", "--gguf-host=cpu", "--gguf-prompt=The", *arguments)
    return pytester.runpytest_subprocess("-p", "gguf_verify.pytest_plugin", "-rA", *options, timeout=600)


def run_here(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """As `run`, in this process: for what is refused before much is started."""
    options = (f"--gguf={FIXTURES / 'tiny-Q4_0.gguf'}", "--gguf-host=cpu", *arguments)
    return pytester.runpytest_inprocess("-p", "gguf_verify.pytest_plugin", "-rA", *options)


def test_one_test_a_matrix(pytester: pytest.Pytester) -> None:
    """attn_k has 128 rows, attn_q 256; the suite's own tests run too. No product uses token_embd. With -v, progress is
    shown beside the report of the tests, not in what they captured."""
    pytester.makepyfile("def test_own(): pass")
    tensor = ("--gguf-tensor", r"blk\.0\.attn_[qk]\.|token_embd", "--gguf-effort=quick")
    done = run(pytester, f"--gguf-kernel={KERNELS}:crashes_for_128_rows", *tensor, "-v")
    done.assert_outcomes(passed=3, failed=1, skipped=1)
    done.stdout.fnmatch_lines(["*blk.0.attn_k.weight: the kernel crashed: its process died of SIGSEGV"])
    model, kernel = model_seen_by(pytester), "[foreign_kernels.py:crashes_for_128_rows]"
    said = done.stdout.str()
    for line in (
        f"PASSED {model}::blk.0.attn_q{kernel}", f"PASSED {model}::kernel-was-called{kernel}",
        f"FAILED {model}::blk.0.attn_k{kernel} - SIGSEGV",
    ):  # fmt: skip
        assert line in said.splitlines()
    assert "Traceback" not in said
    told = ("one run for all matrices", "layers  failed", f"::kernel-was-called{kernel} PASSED")
    progress = [said.index(words) for words in told]
    assert progress == sorted(progress)
    assert "Captured" not in said


def test_what_was_not_run_since_others_hung_has_not_failed(pytester: pytest.Pytester) -> None:
    """The call that hung fails and is named; one of its shape is an error, and the others are judged."""
    tensor = ("--gguf-tensor", r"blk\.0\.ffn_(gate|up)|^output\.", "--gguf-effort=quick")
    done = run(pytester, f"--gguf-kernel={KERNELS}:hangs_for_768_rows", "--gguf-kernel-time-limit=2", *tensor)
    assert done.parseoutcomes() == {"passed": 2, "failed": 1, "errors": 1}
    said = done.stdout.str()
    found = {match[2]: match for match in re.finditer(r"^(FAILED|ERROR) \S+?::(\S+)\[\S+\] - (.*)", said, re.MULTILINE)}
    assert found.keys() == {"blk.0.ffn_gate", "blk.0.ffn_up"}
    causes = {match[1]: match[3] for match in found.values()}
    assert causes["FAILED"] == "the kernel did not return within 2 s"
    assert causes["ERROR"].startswith("the kernel was not run: it exceeded the time limit")
    assert f"PASSED {model_seen_by(pytester)}::output[foreign_kernels.py:hangs_for_768_rows]" in said
    done.stdout.fnmatch_lines(["*is not verified on blk.0.ffn_*.weight of tiny-Q4_0.gguf: it was not checked"])
    done.stdout.fnmatch_lines(["*the kernel was not run: it exceeded the time limit at M=*, N=768, K=256 before"])


RIGHT = 'np.concatenate([w["qs"] & 15, w["qs"] >> 4], axis=-1)'
#: Of Q4_0, these faults have the same outputs.
CAUSE = "activations-interleaved or nibbles-in-pairs"
PAIRS = 'np.stack([w["qs"] & 15, w["qs"] >> 4], axis=-1).reshape(*w.shape, 32)'


@pytest.fixture
def pairs(pytester: pytest.Pytester) -> str:
    """A kernel that reads the nibbles of a byte as neighbouring values; the suite leaves a mark for each run."""
    text = (ROOT / "examples" / "numpy_q4_0.py").read_text()
    assert RIGHT in text
    pytester.makepyfile(my_kernel=text.replace(RIGHT, PAIRS))
    pytester.makeconftest(f"""
        import pathlib, uuid
        from gguf_verify.pytest_plugin import _Model
        verified = _Model._verified
        def marked(self):
            pathlib.Path({str(pytester.path)!r}, f"{{uuid.uuid4()}}.verified").touch()
            return verified(self)
        _Model._verified = marked
    """)
    return "--gguf-kernel=my_kernel.py:gemm"


def test_a_wrong_kernel_costs_one_run_and_one_message(pytester: pytest.Pytester, pairs: str) -> None:
    """The first wrong matrix has a message of at most 15 lines, with numbers, place, explanation and the command that
    repeats the call; the other one refers to it. Both name the cause in pytest's summary, and in the XML."""
    tensor = ("--gguf-tensor", r"blk\.[01]\.attn_k\.", "--gguf-effort=quick")
    done = run(pytester, pairs, *tensor, "--junitxml=made.xml")
    assert done.parseoutcomes() == {"failed": 2, "passed": 1}
    assert len(list(pytester.path.glob("*.verified"))) == 1
    assert "one run for all matrices" not in done.stdout.str()  # which is progress: without -v there is none
    failures, summary = re.split("^=+ (?:short|PASSES)", done.stdout.str(), flags=re.MULTILINE)[::2]
    first, second = re.split(r"^_+ .*? _+$", failures, flags=re.MULTILINE)[1:]
    lines = first.strip().splitlines()
    assert len(lines) <= 15
    assert re.search(r"not verified on blk\.0\.attn_k\.weight of tiny-Q4_0\.gguf: mismatch", lines[0])
    text = "\n".join(lines[:-1])
    for words in ("got ", "expected ", "bound ", "utilisation ", "at byte ", "Diagnosis: ", "Fix: ", "At fault: "):
        assert words in text, (words, first)
    assert lines[-1].startswith("repeat with: gguf-verify ")
    assert f"--tensor '{pattern_of('blk.0.attn_k.weight')}' --only-call " in lines[-1]
    model, kernel = model_seen_by(pytester), "[my_kernel.py:gemm]"
    assert re.fullmatch(
        rf"same cause as {re.escape(f'{model}::blk.0.attn_k{kernel}')}: {CAUSE}; this matrix: [\d,]+ failures "
        r"in products of \d+×128 outputs and at other M, worst \S+ × the bound",
        second.strip(),
    )
    failed = [f"{model}::blk.{i}.attn_k{kernel} - {CAUSE}" for i in (0, 1)]
    assert re.findall(r"^FAILED (.*)", summary, re.MULTILINE) == failed
    xml = (pytester.path / "made.xml").read_text()
    assert xml.count(f'message="{CAUSE}"') == 2


def test_workers_of_xdist_hand_over_the_cause(pytester: pytest.Pytester, pairs: str) -> None:
    """In the short forms of pytest's reports, too."""
    tensor = ("--gguf-tensor", r"blk\.[01]\.attn_k\.", "--gguf-effort=quick")
    done = run(pytester, pairs, *tensor, "-n2", "-q", "--tb=line")
    assert done.parseoutcomes() == {"failed": 2, "passed": 1}
    assert len(list(pytester.path.glob("*.verified"))) == 1
    said = done.stdout.str()
    assert len(re.findall(rf"^FAILED .*::blk\.\d\.attn_k\[.*\] - {CAUSE}$", said, re.MULTILINE)) == 2
    assert len(re.findall(rf"/tiny-Q4_0\.gguf:1: {CAUSE}$", said, re.MULTILINE)) == 2


def test_tests_are_selected_by_model_kernel_and_matrix(pytester: pytest.Pytester) -> None:
    arguments = ("--gguf-kernel=q8_1_naive", "--collect-only", "-q")
    for words, n in (("attn_q", 3), ("q8_1_naive and blk.0.attn", 4), ("tiny-Q4_0.gguf", 24), ("Q5_1", 0)):
        done = run_here(pytester, *arguments, "-k", words)
        assert done.stdout.str().count("[q8_1_naive]\n") == n, words


def test_no_thread_of_a_blas_spins_beside_the_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the suite loads NumPy before the plug-in needs it."""
    pytester.makeconftest("import numpy")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    pytester.makepyfile("import os, numpy\ndef test_own(): assert len(os.listdir('/proc/self/task')) == 1")
    run(pytester, "-k", "test_own", "-p", "no:xdist").assert_outcomes(passed=1)


@pytest.mark.parametrize("inside", [True, False])
def test_a_printed_id_selects_its_test(pytester: pytest.Pytester, inside: bool) -> None:
    """Beside the same options, in a folder below pytest's root, for a model in the suite's tree or elsewhere."""
    pytester.makeini("[pytest]")
    pytester.makepyfile("def test_own(): pass")
    model = FIXTURES / "tiny-Q4_0.gguf"
    if inside:
        model = pytester.mkdir("models") / "tiny-Q4_0.gguf"
        shutil.copy(FIXTURES / "tiny-Q4_0.gguf", model)
    os.chdir(pytester.mkdir("started here"))
    tensor, failed = ("--gguf-tensor", r"blk\.0\.attn_[kq]\."), "nope.py:gemm"
    arguments = ("-p", "gguf_verify.pytest_plugin", f"--gguf={model}", f"--gguf-kernel={failed}", *tensor)
    done = pytester.runpytest_inprocess(*arguments)
    done.assert_outcomes(failed=3)
    printed = re.findall(r"^FAILED (.*?) - ", done.stdout.str(), re.MULTILINE)
    assert [test.rpartition("::")[2] for test in printed] == [
        f"{name}[{failed}]" for name in ("kernel-was-called", "blk.0.attn_k", "blk.0.attn_q")
    ]
    for test in printed:
        again = pytester.runpytest_inprocess(*arguments, test)
        again.assert_outcomes(failed=1)
        again.stdout.fnmatch_lines([f"FAILED {glob.escape(test)} - *"])
    pytester.runpytest_inprocess(*arguments, *printed[1:]).assert_outcomes(failed=2)
    pytester.runpytest_inprocess(*arguments, str(model), "..").assert_outcomes(failed=3, passed=1)
    assert pytester.runpytest_inprocess(*arguments, f"{model}::blk.0").ret == pytest.ExitCode.USAGE_ERROR


def test_who_comes_second_reads_the_report_of_the_first(tmp_path: Path) -> None:
    """The short variant of the next test: the second asks while the first is verifying."""
    report = Report(environment=records.environment(), rungs=[records.rung("layers")])
    begun, end, calls, found = threading.Event(), threading.Event(), [], []

    def verified() -> Report:
        calls.append(1)
        begun.set()
        assert end.wait(60)
        return report

    model: Any = SimpleNamespace(_verified=verified)
    workers = [threading.Thread(target=lambda: found.append(_Model._shared(model, tmp_path))) for _ in range(2)]
    workers[0].start()
    assert begun.wait(60)
    workers[1].start()
    end.set()
    for worker in workers:
        worker.join(60)
    assert calls == [1]
    assert [r.to_dict() for r in found] == [report.to_dict()] * 2


def test_the_workers_of_xdist_share_one_run(pytester: pytest.Pytester) -> None:
    """Each verification leaves a mark: two workers verify as often as one does."""
    pytester.makeconftest(f"""
        import itertools, os, pathlib
        from gguf_verify.pytest_plugin import _Model
        count, verified = itertools.count(), _Model._verified
        def marked(self):
            pathlib.Path({str(pytester.path)!r}, f"{{os.getpid()}}-{{next(count)}}.verified").touch()
            return verified(self)
        _Model._verified = marked
    """)
    arguments = ("--gguf-kernel=q8_1_naive", "--gguf-tensor", r"blk\.[01]\.attn_k\.", "--gguf-effort=quick")
    outcomes, times = [], []
    for workers in ((), ("-n2",)):
        outcomes.append(run(pytester, *arguments, *workers).parseoutcomes())
        marks = list(pytester.path.glob("*.verified"))
        times.append(len(marks))
        for mark in marks:
            mark.unlink()
    assert outcomes == [{"passed": 3}] * 2
    assert times[0] == times[1] > 0


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    """A model and kernels of the suite's own."""
    pytester.makeconftest(f"""
        import pytest
        @pytest.fixture(scope="session")
        def gguf_model():
            return {str(FIXTURES / "tiny-Q4_0.gguf")!r}
        @pytest.fixture
        def chosen():
            return dict(rungs=["blocks"], tensor="blk.0.attn_k", probes="brief", host="cpu")
    """)
    pytester.makepyfile(f"""
        def test_right(verify_kernel, chosen):
            assert verify_kernel("q8_1_naive", **chosen)
        def test_wrong(verify_kernel, chosen):
            verify_kernel({f"{KERNELS}:drops_s"!r}, **chosen)
        def test_no_kernel(verify_kernel, chosen):
            verify_kernel(**chosen)
        def test_own(verify_kernel, gguf_kernel):
            pass
    """)
    done = pytester.runpytest_subprocess("-p", "gguf_verify.pytest_plugin", "-rA", timeout=600)
    assert done.parseoutcomes() == {"passed": 1, "failed": 2, "errors": 1}
    done.stdout.fnmatch_lines(
        ["*VerificationError: kernel *drops_s (declares q8_1) is not verified on tiny-Q4_0.gguf*"]
    )
    assert done.stdout.str().count("no kernel is given: --gguf-kernel KERNEL") >= 2
    assert "shown.py" not in done.stdout.str()


def test_a_kernel_that_was_never_called(pytester: pytest.Pytester) -> None:
    """A model of F16: its matrices are multiplied by kernels that stand beside the one under test."""
    options = (f"--gguf={FIXTURES / 'tiny-F16.gguf'}", "--gguf-host=cpu", "--gguf-tensor", r"blk\.0\.attn_k")
    arguments = ("-p", "gguf_verify.pytest_plugin", "-rA", "--gguf-effort=quick", *options)
    done = pytester.runpytest_subprocess(*arguments, f"--gguf-kernel={KERNELS}:drops_s", timeout=600)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["kernel *drops_s was never called: it multiplies Q4_0"])


def test_the_defaults_are_the_command_lines(pytestconfig: pytest.Config) -> None:
    config = pytestconfig.__class__.fromdictargs({}, ["-p", "gguf_verify.pytest_plugin"])
    assert _options(config) == Options()
    chosen = _options(config, probes="brief", prompt="Once")
    assert (chosen.probes, chosen.prompt) == ("brief", "Once")


def test_what_cannot_be_run(pytester: pytest.Pytester) -> None:
    done = run_here(pytester, "--gguf-tensor", "nothing")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done = run_here(pytester, "--gguf-kernel", "nope.py:gemm", "--gguf-tensor", r"blk\.0\.attn_q\.")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["kernel nope.py:gemm: nope.py is not a file"])


def test_no_such_host(pytester: pytest.Pytester) -> None:
    done = run_here(pytester, "--gguf-host=moon")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "--gguf-host: choose one of auto, " in done.stdout.str() + done.stderr.str()
