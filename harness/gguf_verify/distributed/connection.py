"""Connecting with Ray, or starting it for this process alone. Only this room imports Ray."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from ..support import scratch
from ..support.command_line import cores
from ..support.errors import EnvironmentFault
from ..support.text import printable
from .guard import guarded

#: The address that means: processes of this machine alone.
LOCAL = "local"
#: The longest path of a socket (sun_path in unix(7)), and how long what Ray appends to its folder's may be.
_SOCKET, _APPENDED = 107, 66
_LOOPBACK = "127.0.0.1"
#: Ray keeps the first that it reads. All its local processes have it in their environment.
_TOKEN_NAME, _TOKEN = "RAY_AUTH_TOKEN", secrets.token_hex(32)
_MARK = f"{_TOKEN_NAME}={_TOKEN}"
#: Seconds in which a cluster takes a connection.
_TO_REACH = 10.0
#: Times that Ray gives a task out again whose worker was lost.
RETRIES = 3
#: For workers: at their end they would kill those that keep processes (`keeper`), which then end nothing that these
#: started.
_OF_WORKERS = {"RAY_kill_child_processes_on_worker_exit": "0"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def connected(address: str) -> Iterator[None]:
    """In this block `ray` is connected. Where this process was connected before, that is used, and stays. Raises
    EnvironmentFault."""
    with _variables(address):
        if address != LOCAL and not _connected_before():
            # before Ray is imported, which keeps what it reads of some variables first
            try:
                _reach(address)
            except (OSError, ValueError) as error:
                raise _no_answer(address, error) from error
        import ray  # it reads the variables

        if ray.is_initialized():
            yield
            return
        with _nothing_printed(), guarded(_MARK) if address == LOCAL else nullcontext():
            with _handlers_kept():
                if address == LOCAL:
                    _start()
                else:
                    _join(address)
            try:
                yield
            finally:
                ray.shutdown()


def _start() -> None:
    """Ray's processes for this one alone, in a folder that ends with the run."""
    import ray

    folder = scratch.shared("ray")
    if len(str(folder)) > _SOCKET - _APPENDED:
        raise EnvironmentFault(f"--ray {LOCAL}: the path of the folder for temporary files is too long: set TMPDIR")
    try:
        started = ray.init(
            address=LOCAL, _node_ip_address=_LOOPBACK, include_dashboard=False, log_to_driver=False, num_cpus=cores(),
            logging_level=logging.ERROR, _temp_dir=str(folder),
        )  # fmt: skip
    except (ConnectionError, ValueError, RuntimeError, OSError, TimeoutError) as error:
        raise EnvironmentFault(f"--ray {LOCAL}: Ray cannot be started: {_first_line(error)}") from error
    if started.address_info["node_ip_address"] != _LOOPBACK:
        ray.shutdown()
        raise EnvironmentFault(
            f"--ray {LOCAL}: this process imported Ray before, which would now listen to the network; start it by "
            "`ray start --head` and give its address"
        )


def _join(address: str) -> None:
    import ray

    try:
        ray.init(
            address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": _OF_WORKERS}
        )
    except (ConnectionError, ValueError, RuntimeError, OSError, TimeoutError) as error:
        raise _no_answer(address, error) from error


def _connected_before() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _no_answer(address: str, error: Exception) -> EnvironmentFault:
    said = f"no cluster of Ray answers there: {_first_line(error)}"
    return EnvironmentFault(f"--ray {printable(address)}: {said}")


def _reach(address: str) -> None:
    """Ray tries for minutes if no process listens. Raises OSError; ValueError if it is not an address."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("an address is HOST:PORT, ray://HOST:PORT, auto or local")
    socket.create_connection((host.strip("[]"), int(port)), _TO_REACH).close()


def _first_line(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error).strip()
    return printable(next(iter(said.splitlines()), type(error).__name__), 200)


@contextmanager
def _variables(address: str) -> Iterator[None]:
    """Sets the variables that Ray reads, in this block."""
    made = {
        "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported
        "RAY_task_oom_retries": str(RETRIES),  # else what takes too much memory is tried for ever
        **_OF_WORKERS,
    }
    if address == LOCAL:
        made |= {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a node has the address 127.0.0.1, and listens there
            "RAY_AUTH_MODE": "token",  # other users of this machine cannot have it run what they like
            _TOKEN_NAME: _TOKEN,
            "RAY_enable_metrics_collection": "0",
        }
    before = {name: os.environ.get(name) for name in made}
    os.environ |= made
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """Keep standard output for the result: Ray prints messages about lost workers there, even if the output of
    workers is not requested."""
    worker = sys.modules["ray._private.worker"]
    prints = getattr(worker, "print_to_stdstream", None)
    if prints is None:
        yield
        return
    worker.print_to_stdstream = lambda *_, **__: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        worker.print_to_stdstream = prints  # type: ignore[attr-defined]


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray replaces handlers of signals, which report what was found when a run is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
