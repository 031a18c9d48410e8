"""Commands that are kept by a process of their own."""

from __future__ import annotations

import os
import resource

import pytest

from gguf_verify.processes.commands import Processes


def test_a_process_with_many_descriptors_starts_commands() -> None:
    """The keeper inherits the numbers of descriptors, of which select() takes no more than 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not open 2,048 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    null, processes = os.open(os.devnull, os.O_RDONLY), Processes()
    held = [os.dup(null) for _ in range(1100)]
    try:
        ended = processes.run(["sh", "-c", "exit 7"], 60.0)
    finally:
        for each in (null, *held):
            os.close(each)
        processes.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (ended.exit_code, ended.said) == (7, ())
