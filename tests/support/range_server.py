"""A web server on 127.0.0.1 that serves files in ranges, or as a broken or hostile server does."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit


class Asked(NamedTuple):
    """A request: path with query, Range, and Authorization."""

    path: str
    range: str | None
    authorization: str | None


class Server(ThreadingHTTPServer):
    """Serves `files`, by path. Bodies and behaviour may be changed while it runs.

    Args:
        files: path → body.
        behaviour: name of a method of `Behaviours`, or "".
        redirects: path → address.
        answers: path → JSON, for the API of a hub.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, files: dict[str, bytes] | None = None, behaviour: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files or {}
        self.behaviour = behaviour
        self.redirects: dict[str, str] = {}
        self.answers: dict[str, bytes] = {}
        self.asked: list[Asked] = []
        self.sent = 0
        self.over = threading.Event()

    def url(self, path: str = "/m.gguf", scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.server_address[1]}{path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(Asked(self.path, asked, self.headers.get("Authorization")))
        path = unquote(urlsplit(self.path).path)
        if path in server.redirects:
            return self.answer(302, b"", Location=server.redirects[path])
        if path in server.answers:
            return self.answer(200, server.answers[path], **{"Content-Type": "application/json"})
        body = server.files.get(path)
        if body is None:
            return self.answer(404, b"no such file")
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked or "")
        if match is None:
            return self.answer(200, body)
        start, stop = int(match[1]), min(int(match[2]) + 1, len(body))
        if server.behaviour:
            return getattr(Behaviours, server.behaviour)(self, body, start, stop)
        if start >= len(body):
            return self.answer(416, b"", **{"Content-Range": f"bytes */{len(body)}"})
        return self.part(body, start, stop)

    def part(
        self, body: bytes, start: int, stop: int, headers: dict[str, str] | None = None, size: int | None = None
    ) -> None:
        said = f"bytes {start}-{stop - 1}/{len(body) if size is None else size}"
        self.answer(206, body[start:stop], **{"Content-Range": said, "ETag": '"1"', **(headers or {})})

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.write(body)

    def write(self, body: bytes) -> None:
        with contextlib.suppress(OSError):
            self.wfile.write(body)
            self.server.sent += len(body)

    def endless(self, status: int, chunk: bytes, **headers: str) -> None:
        """A body that does not end until the client hangs up."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            while not self.server.over.is_set():
                self.wfile.write(chunk)
                self.server.sent += len(chunk)


class Behaviours:
    """What servers do wrong, each with the handler, the body, and the range that was asked for."""

    @staticmethod
    def no_ranges(h: _Handler, body: bytes, _start: int, _stop: int) -> None:
        h.answer(200, body)

    @staticmethod
    def no_ranges_without_end(h: _Handler, _body: bytes, _start: int, _stop: int) -> None:
        h.endless(200, bytes(1 << 16))

    @staticmethod
    def part_without_end(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.endless(206, body[start:stop], **{"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"})

    @staticmethod
    def other_range(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.part(body, start + 1, stop)

    @staticmethod
    def longer_answer(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.part(body, 0, len(body), {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"})

    @staticmethod
    def no_size(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.part(body, start, stop, {"Content-Range": f"bytes {start}-{stop - 1}/*"})

    @staticmethod
    def huge_size(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.part(body, start, stop, size=1 << 62)

    @staticmethod
    def another_size_later(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.part(body, start, stop, size=len(body) + (start > 0))

    @staticmethod
    def another_version_later(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.part(body, start, stop, {"ETag": '"2"' if start else '"1"'})

    @staticmethod
    def cut(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.answer(
            206, body[start : stop - 1],
            **{"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}", "Content-Length": str(stop - start)},
        )  # fmt: skip
        h.close_connection = True

    @staticmethod
    def zipped(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.part(body, start, stop, {"Content-Encoding": "gzip"})

    @staticmethod
    def busy(h: _Handler, _body: bytes, _start: int, _stop: int) -> None:
        h.answer(503, b"later")

    @staticmethod
    def busy_once(h: _Handler, body: bytes, start: int, stop: int) -> None:
        first = sum(asked.range == h.headers["Range"] for asked in h.server.asked) == 1
        h.answer(503, b"later") if first and not start else h.part(body, start, stop)

    @staticmethod
    def hangs(h: _Handler, _body: bytes, _start: int, _stop: int) -> None:
        h.server.over.wait(30)

    @staticmethod
    def hangs_later(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.server.over.wait(30) if start else h.part(body, start, stop)

    @staticmethod
    def drips(h: _Handler, body: bytes, start: int, stop: int) -> None:
        h.send_response(206)
        h.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(body)}")
        h.send_header("Content-Length", str(stop - start))
        h.end_headers()
        with contextlib.suppress(OSError):
            while not h.server.over.wait(0.1):
                h.wfile.write(b"G")

    @staticmethod
    def forbidden(h: _Handler, _body: bytes, _start: int, _stop: int) -> None:
        h.answer(403, b"no")

    @staticmethod
    def nonsense(h: _Handler, _body: bytes, _start: int, _stop: int) -> None:
        h.wfile.write(b"\x00\x1b[31m nonsense\r\n\r\n")
        h.close_connection = True


@contextlib.contextmanager
def served(files: dict[str, bytes | Path], behaviour: str = "") -> Iterator[Server]:
    """A server that runs."""
    bodies = {path: body if isinstance(body, bytes) else body.read_bytes() for path, body in files.items()}
    server = Server(bodies, behaviour)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
