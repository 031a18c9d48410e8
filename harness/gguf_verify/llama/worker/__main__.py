"""Server of the parent's calls, until the parent ends: `python -m gguf_verify.llama.worker FD`."""

from __future__ import annotations

import ctypes as c
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ...processes.given import GIVEN, Taken, only_read
from ...support import protocol
from ...support.lanes import Lane, Lanes

if TYPE_CHECKING:
    from .calls import Call

_PR_SET_PDEATHSIG = 1
WITHOUT_LLAMA, LANES, BUILD = "--without-llama", "--lanes=", "--build="


def calls(link: Connection, llama: bool, lanes: Lanes | None = None) -> dict[str, Call]:
    """Return every call of this process by name; without llama.cpp, only scans of files. Raises whatever loading
    llama.cpp's libraries raises."""
    from .files import FilePasses

    if not llama:
        return {"scans": FilePasses(link, llama=False).scans}
    from .calls import Libraries
    from .library import Library
    from .model import LoadedModel
    from .products import Products
    from .single_nodes import SingleNodes

    libraries, products = Libraries(), Products()
    kinds = (
        Library(libraries), products, SingleNodes(), FilePasses(link),
        LoadedModel(link, libraries, products.device, lanes),
    )  # fmt: skip
    return {name: call for kind in kinds for name, call in kind.calls().items()}


def serve(link: Connection, llama: bool = True, lanes: Lanes | None = None) -> None:
    """Answer calls until the parent ends."""
    out, back = lanes or (None, None)
    files = Taken(link)
    try:
        known = calls(link, llama, lanes)
    except Exception as error:
        protocol.send(link, {"error": f"{type(error).__name__}: {error}"})
        return
    protocol.send(link, {"ready": True})
    if llama:
        # Do work that most calls need, while the parent may still be starting.
        from .. import bindings

        bindings.version()
    while True:
        try:
            header, arrays = protocol.receive(link, lane=back)
        except (EOFError, OSError):
            return
        if out is not None:
            out.all_taken()  # the parent sends a request only after the last answer
        answer, made = _answer(known, files, header, arrays)
        try:
            protocol.send(link, answer, *made, lane=out)
        except OSError:  # the parent is gone
            return


def _answer(
    known: dict[str, Call], files: Taken, header: dict[str, Any], arrays: list[npt.NDArray[Any]]
) -> tuple[dict[str, Any], tuple[npt.NDArray[Any], ...]]:
    """Make one call; returns its result, or the reason why there is none."""
    from .calls import CallFailed, NotLoaded

    try:
        files.take(header)
        header.pop(GIVEN, None)
        names = header.pop("names")
        result, out = known[header.pop("call")](**header, **dict(zip(names, arrays, strict=True)))
    except NotLoaded as error:
        return {"refused": str(error), "of_file": error.of_file}, ()
    except CallFailed as error:
        return {"refused": str(error)}, ()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}, ()
    return {"result": result}, out


def main() -> None:
    """Serve the socket whose descriptor is the last argument.

    `--without-llama` serves without llama.cpp; `--lanes=` has the descriptors of the lanes from and to the parent;
    `--build=` has the folder of llama.cpp's libraries.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    c.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    only_read()
    handles = [argument.removeprefix(LANES).split(",") for argument in sys.argv if argument.startswith(LANES)]
    for folder in (a.removeprefix(BUILD) for a in sys.argv if a.startswith(BUILD)):
        from .. import builds

        builds.choose(Path(folder))
    lanes = [Lanes(Lane(int(out), mapped=True), Lane(int(back))) for back, out in handles]
    serve(Connection(int(sys.argv[-1])), WITHOUT_LLAMA not in sys.argv, *lanes)


if __name__ == "__main__":
    main()
