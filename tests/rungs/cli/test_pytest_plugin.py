"""`pytest --gguf MODEL.gguf --gguf-kernel …`: one test for each matrix."""

from __future__ import annotations

import pytest

from tests.support.tools import FIXTURES, ROOT

pytest_plugins = ["pytester"]

KERNELS = ROOT / "tests" / "support" / "foreign_kernels.py"


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    options = (f"--gguf={FIXTURES / 'tiny-Q4_0.gguf'}", "--gguf-host=cpu", *arguments)
    return pytester.runpytest_subprocess("-p", "gguf_verify.pytest_plugin", "-rA", *options, timeout=120)


def test_one_test_a_matrix(pytester: pytest.Pytester) -> None:
    """attn_k has 128 rows, attn_q 256; the suite's own tests run too. No product uses token_embd."""
    pytester.makepyfile("def test_own(): pass")
    tensor = ("--gguf-tensor", r"blk\.0\.attn_[qk]\.|token_embd")
    done = run(pytester, f"--gguf-kernel={KERNELS}:crashes_for_128_rows", *tensor)
    done.assert_outcomes(passed=2, failed=1, skipped=1)
    done.stdout.fnmatch_lines(["blk.0.attn_k.weight: the kernel crashed: its process died of SIGSEGV"])
    done.stdout.fnmatch_lines(["PASSED gguf::blk.0.attn_q.weight"])
    assert "Traceback" not in done.stdout.str()


def test_more_failures_than_a_record_holds(pytester: pytest.Pytester) -> None:
    """Every matrix is wrong, and every test fails."""
    tensor = ("--gguf-tensor", r"blk\.[0-2]\.attn_k\.")
    done = run(pytester, f"--gguf-kernel={KERNELS}:drops_s", *tensor)
    outcomes = done.parseoutcomes()
    assert outcomes == {"failed": 3}
    done.stdout.fnmatch_lines(["*blk.2.attn_k.weight row *: the output is outside the bound*"])


def test_what_cannot_be_run(pytester: pytest.Pytester) -> None:
    done = run(pytester, "--gguf-tensor", "nothing")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done = run(pytester, "--gguf-kernel", "nope.py:gemm", "--gguf-tensor", r"blk\.0\.attn_q\.")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["kernel nope.py:gemm: nope.py is not a file"])


def test_no_such_host(pytester: pytest.Pytester) -> None:
    done = run(pytester, "--gguf-host=moon")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "--gguf-host: choose one of auto, " in done.stdout.str() + done.stderr.str()
