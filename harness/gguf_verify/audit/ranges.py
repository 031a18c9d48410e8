"""Fetching of byte ranges of remote files, with limits on size and time, from untrusted servers.

The sessions and the resolution of hf:// addresses are fsspec's. Its own `cat_file` reads whatever a server answers,
which may be the whole file or endless. Here every answer is checked before its body is read, and a body is read only up
to the requested length.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, Self

from ..support.address import Address
from ..support.errors import EnvironmentFault, HarnessError, NoSuchFile
from ..support.text import printable
from .redirects import MOST, STATUS, Redirects, RefusedRedirect

#: Bytes per request; seconds until its answer is complete, and seconds until the connection is made.
MOST_BYTES, REQUEST_LIMIT, CONNECT_LIMIT = 4 << 20, 60.0, 15.0
#: Number of simultaneous requests.
AT_ONCE = 16
#: Seconds to wait before each repetition of a request that the server could not answer yet.
PAUSES = (0.5, 2.0)
#: Largest file size in bytes: common file systems hold no larger sparse file.
MOST_SIZE = 1 << 43
_BUSY = (429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class Span(NamedTuple):
    """Bytes `start` up to, not including, `stop` of the file with index `file`."""

    file: int
    start: int
    stop: int


class _Again(Exception):
    """The server may answer later; `why` says what happened."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass
class _File:
    """A remote file.

    Args:
        address: as the user gave it.
        url, headers: its location, and the headers to send there.
        at: the location after redirects, used from then on; "" before the first answer.
        size: in bytes; -1 before the first answer.
        tag: the server's version tag (ETag).
    """

    address: Address
    url: str
    headers: dict[str, str]
    at: str = ""
    size: int = -1
    tag: str | None = None


def why_missing() -> str | None:
    """Return None if remote files can be read, otherwise one line that says what to install."""
    names = ("fsspec", "aiohttp", "huggingface_hub")
    missing = [name for name in names if find_spec(name) is None]
    if not missing:
        return None
    are = "is" if len(missing) == 1 else "are"
    said = f"remote files need {' and '.join(missing)}, which {are} not installed (the extra 'remote')"
    return f"{said}; run: pip install {' '.join(missing)}"


class Ranges:
    """Fetches ranges of files. Use it as a context manager.

    Args:
        seconds: time limit for everything together.
        redirects: further hosts that servers may redirect to.
    """

    def __init__(self, seconds: float, redirects: Sequence[str] = ()) -> None:
        """Raises EnvironmentFault if fsspec is not installed."""
        if missing := why_missing():
            raise EnvironmentFault(missing)
        import fsspec
        from aiohttp import ClientTimeout

        self._request_limit = min(REQUEST_LIMIT, seconds)
        self._seconds = seconds
        self._redirects = Redirects(redirects)
        # Compressed answers are refused: one byte could expand to a megabyte. So plain ones are requested and accepted.
        self._fs = fsspec.filesystem(
            "https",
            skip_instance_cache=True,
            get_client=self._client,
            client_kwargs={
                "timeout": ClientTimeout(self._request_limit, sock_connect=min(CONNECT_LIMIT, seconds)),
                "auto_decompress": False,
                "trust_env": True,
            },
        )
        self._session: Any = None
        self._files: list[_File] = []
        self._until: float | None = None
        #: Bytes fetched so far, and the number of requests.
        self.fetched, self.requests = 0, 0

    def __enter__(self) -> Self:
        return self

    async def _client(self, **options: Any) -> Any:
        """Make the session as fsspec does, but resolve names by `Redirects`."""
        import aiohttp

        resolver: Any = self._redirects
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=resolver), **options)

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._run(self._session.close)

    def add(self, address: Address) -> int:
        """Register a file; returns its index. Raises NoSuchFile, EnvironmentFault."""
        url, headers = (address.url, {}) if address.scheme != "hf" else self._on_the_hub(address)
        self._redirects.given(url, address.scheme == "hf")
        self._files.append(_File(address, url, headers))
        return len(self._files) - 1

    def add_beside(self, file: int, name: str) -> int:
        """Register the file of this name beside another one; returns its index."""
        of = self._files[file]
        self._files.append(_File(of.address.beside(name), Address(of.url).beside(name).url, of.headers))
        return len(self._files) - 1

    def start_of(self, file: int, nbytes: int) -> tuple[bytes, int]:
        """Return the first bytes of a file, up to `nbytes`, and the file's size. Raises as `fetch`."""
        got: list[bytes] = []
        self.fetch([Span(file, 0, nbytes)], lambda _span, body: got.append(body))
        return got[0], self._files[file].size

    def fetch(self, spans: Sequence[Span], take: Callable[[Span, bytes], object]) -> None:
        """Pass each range to `take` as it arrives, in any order; only a file's first range may be shorter, if the file
        is.

        Raises NoSuchFile if the file does not exist; EnvironmentFault if the server refuses it, does not support
        ranges, or gives contradictory answers.
        """
        if spans:
            self._run(self._all, spans, take)

    def _run(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run a coroutine in fsspec's thread, and wait."""
        from fsspec.asyn import sync

        sync(self._fs.loop, work, *args)

    async def _all(self, spans: Sequence[Span], take: Callable[[Span, bytes], object]) -> None:
        loop = asyncio.get_running_loop()
        if self._until is None:
            self._until = loop.time() + self._seconds
        session = self._session = await self._fs.set_session()
        left = iter(spans)

        async def worker() -> None:
            for span in left:
                take(span, await self._one(session, span))

        workers = [asyncio.create_task(worker()) for _ in range(min(AT_ONCE, len(spans)))]
        try:
            async with asyncio.timeout_at(self._until):
                await asyncio.gather(*workers)
        except TimeoutError:
            some = self._files[spans[0].file].address
            raise _fault(some, f"it took more than {self._seconds:g} s to fetch what an audit needs") from None
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _one(self, session: Any, span: Span) -> bytes:
        import aiohttp

        file = self._files[span.file]
        for pause in (*PAUSES, None):
            try:
                return await self._answer(session, file, span)
            except HarnessError:
                raise
            except _Again as busy:
                why = busy.why
            except RefusedRedirect as refused:
                raise _fault(file.address, f"the server redirects {refused.why}") from None
            except TimeoutError:
                raise _fault(file.address, f"no answer in {self._request_limit:g} s") from None
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, aiohttp.ClientOSError) as error:
                if isinstance(error, aiohttp.ClientConnectorError):
                    raise _fault(file.address, _why(error)) from None
                why = "the connection broke"
            except (aiohttp.ClientError, ValueError) as error:
                raise _fault(file.address, _why(error)) from None
            if pause is None:
                break
            await asyncio.sleep(pause)
        raise _fault(file.address, f"{why}, {len(PAUSES) + 1} times")

    async def _answer(self, session: Any, file: _File, span: Span) -> bytes:
        stop = span.stop if file.size < 0 else min(span.stop, file.size)
        asked = {"Range": f"bytes={span.start}-{stop - 1}", "Accept-Encoding": "identity"}
        url, response = await self._reached(session, file, asked)
        async with response:
            self.requests += 1
            status = response.status
            if file.at and status in (401, 403, 404, 410):  # a signed address may have expired
                file.at = ""
                raise _Again(f"the server answers {status}")
            if status in _BUSY:
                raise _Again(f"the server answers {status}")
            size, nbytes = self._expected(file, span.start, stop, response)
            tag = response.headers.get("ETag")
            if file.size >= 0 and (size, tag) != (file.size, file.tag):
                raise _fault(file.address, "the file changed while it was fetched")
            body = await _read(response, nbytes)
            self.fetched += len(body)
            if len(body) != nbytes:
                raise _Again(f"the answer ended after {len(body):,} of {nbytes:,} bytes")
            file.size, file.tag, file.at = size, tag, url
            return body

    async def _reached(self, session: Any, file: _File, asked: dict[str, str]) -> tuple[str, Any]:
        """Follow redirects; returns the final address and its answer. Raises aiohttp's errors, RefusedRedirect,
        ValueError."""
        from yarl import URL

        url, first = URL(file.at or file.url), URL(file.url)
        for _ in range(MOST + 1):
            own = file.headers if not file.at and url.origin() == first.origin() else {}
            response = await session.get(url, headers=asked | own, allow_redirects=False)
            location = response.headers.get("Location")
            if response.status not in STATUS or location is None:
                return str(url), response
            response.close()  # the body of a redirect may be endless
            to = url.join(URL(location))
            self._redirects.check(url, to)
            url = to
        raise RefusedRedirect("without end")

    def _expected(self, file: _File, start: int, stop: int, response: Any) -> tuple[int, int]:
        """Return the file's size and the length of the answer. Raises HarnessError if it is not the requested range."""
        where, status = file.address, response.status
        length = response.content_length
        said = response.headers.get("Content-Range", "")
        if status in (404, 410):
            raise NoSuchFile(f"{printable(str(where), 200)}: the server has no such file ({status})", "no-such-file")
        if status in (401, 403):
            raise _fault(where, f"the server denies access ({status})")
        if status == 416 and start == 0 and said.strip() == "bytes */0":
            return 0, 0
        if status not in (200, 206):
            raise _fault(where, f"the server answers {status}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _fault(where, "the server sends the file encoded, which has no ranges")
        if status == 200:
            if start == 0 and length is not None and length <= stop:  # all of a small file
                return length, length
            raise _fault(where, "the server does not support ranges: download the file and audit it")
        match = _RANGE.fullmatch(said.strip())
        if match is None:
            raise _fault(where, f"the server sent an invalid 'Content-Range: {printable(said, 60)}'")
        first, last, size = map(int, match.groups())
        right = first == start and last == min(stop, size) - 1 and first <= last
        if not right or (length is not None and length != last + 1 - first):
            sent = "" if length is None else f" in {length:,} bytes"
            raise _fault(where, f"requested bytes {start} to {stop - 1}, the server sent {printable(said, 80)}{sent}")
        if size > MOST_SIZE:
            raise _fault(where, f"the server reports a size of {size:,} bytes, more than any file here can have")
        return size, last + 1 - first

    def _on_the_hub(self, address: Address) -> tuple[str, dict[str, str]]:
        """Return the address of a file on the Hugging Face hub, and headers with the user's token, if there is one."""
        import fsspec
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.utils import build_hf_headers

        missing = "no such repository or revision on the hub, or it is private and there is no token for it"
        try:
            fs = fsspec.filesystem("hf", skip_instance_cache=True)
            return fs.url(address.url), build_hf_headers(token=getattr(fs, "token", None), library_name="gguf-verify")
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", None)
            if status in (401, 404):
                raise NoSuchFile(f"{printable(str(address), 200)}: {missing}", "no-such-file") from None
            raise _fault(address, f"the hub answers {status}" if status else "the hub does not answer") from None
        except (FileNotFoundError, NotImplementedError, ValueError):
            raise NoSuchFile(f"{printable(str(address), 200)}: {missing}", "no-such-file") from None
        except Exception as error:  # from the HTTP client, which differs between versions
            raise _fault(address, f"the hub does not answer ({type(error).__name__})") from None


async def _read(response: Any, nbytes: int) -> bytes:
    """Read the body, at most `nbytes` bytes."""
    got = bytearray()
    while len(got) <= nbytes:
        some = await response.content.read(min(1 << 16, nbytes + 1 - len(got)))
        if not some:
            return bytes(got)
        got += some
    response.close()  # the body would go on
    return bytes(got[:nbytes])


def _fault(address: Address, why: str) -> EnvironmentFault:
    return EnvironmentFault(f"{printable(str(address), 200)}: {why}", "remote-file")


def _why(error: Exception) -> str:
    """Describe an aiohttp error without the address, which may hold secrets."""
    import aiohttp

    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"invalid certificate: {printable(str(error.certificate_error), 200)}"
        case aiohttp.ClientConnectorSSLError():
            return f"no TLS connection: {printable(str(error.os_error), 200)}"
        case aiohttp.ClientConnectorError():
            return f"no connection: {printable(str(error.os_error), 200)}"
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError() | ValueError():
            return "the address, or a redirect's target, is invalid"
        case _:
            return f"the answer is not valid HTTP ({type(error).__name__})"
