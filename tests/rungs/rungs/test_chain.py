"""One product makes the stops that `verification.pipeline` lists, and in that order."""

from __future__ import annotations

import re
import sys
from functools import reduce
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.results.options import Options
from gguf_verify.verification import pipeline, verify
from tests.support.tools import FIXTURES

OPTIONS = Options(probes="brief", prompt="Once", tensor=r"blk\.0\.attn_k\.", threads=1, progress=False)


def code_of(name: str) -> CodeType:
    """The code of a function, by its module and name."""
    parts = name.split(".")
    of_class = 1 + parts[-2][0].isupper()
    module = import_module(".".join(("gguf_verify", *parts[:-of_class])))
    function: Any = reduce(getattr, parts[-of_class:], module)
    code: CodeType = function.__code__
    return code


def test_the_stops_of_a_product() -> None:
    stops = re.findall(r"^ ?(\d+)\. `([\w.]+)`", pipeline.__doc__ or "", re.MULTILINE)
    assert [int(number) for number, _ in stops] == list(range(1, len(stops) + 1))
    assert len(stops) <= 15
    codes = {code_of(name): name for _, name in stops}
    passed = dict[str, None]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes:
            passed.setdefault(codes[frame.f_code])

    sys.setprofile(profile)
    try:
        report = verify(FIXTURES / "tiny-Q4_0.gguf", "q8_1_naive", CpuHost(1), ["layers"], OPTIONS)
    finally:
        sys.setprofile(None)
    assert report.exit_code == 0
    assert list(passed) == [name for _, name in stops]
