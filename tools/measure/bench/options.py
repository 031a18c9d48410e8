"""Common options of the benchmarks of verifications, and their evaluation."""

from __future__ import annotations

import argparse
import itertools
import string
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from gguf_verify.hosts.choice import HOST_CHOICES
from gguf_verify.kernels.families import DEFAULT_KERNEL
from gguf_verify.llama.backends import SHORT
from gguf_verify.support.errors import UsageError

from . import growth, records
from .models import BEFORE_LETTERS, FILES, SHAPES, RandomModel, Shape


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add the options for shapes and types of models."""
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="1.1B", help="shape of the model (%(default)s); the next options change it")
    for name in ("layers", "width"):
        add(f"--{name}", type=int, nargs="+", metavar="N", help="one model for each value")
    for name in ("ff", "heads", "kv-heads", "vocab"):
        add(f"--{name}", type=int, metavar="N", help="(default: as in the shape, scaled with the width)")
    add("--type", nargs="+", choices=FILES, default=["Q4_0"], metavar="TYPE", help="types of the file (Q4_0)")
    add("--keep", type=Path, metavar="FOLDER", help="keep the models in this folder, and reuse them")


def shapes_of(args: argparse.Namespace) -> Iterator[Shape]:
    """Yield the requested shapes. Raises UsageError."""
    base = SHAPES[args.shape]
    given = {name: getattr(args, name) for name in ("ff", "heads", "kv_heads", "vocab")}
    given = {name: value for name, value in given.items() if value is not None}
    for width, layers in itertools.product(args.width or [base.width], args.layers or [base.layers]):
        wide = base if width == base.width else base.wide(width)
        yield replace(wide, layers=layers, **given)


def models_of(args: argparse.Namespace) -> list[RandomModel]:
    """Return a model for each shape and type. Raises UsageError."""
    return [RandomModel(shape, kind) for shape in shapes_of(args) for kind in args.type]


def add_verification(parser: argparse.ArgumentParser) -> None:
    """Add the options of a verification."""
    add = parser.add_argument
    add("--host", choices=HOST_CHOICES, default="auto", help="host that runs the kernel (%(default)s)")
    add("--kernel", default=DEFAULT_KERNEL, metavar="NAME", help="(%(default)s)")
    add("--reference", choices=list(SHORT), default="cpu", help="the backend of llama.cpp (%(default)s)")


def prompt_of(tokens: int) -> str:
    """Return random letters of this number of tokens. Raises UsageError if it is too small for a prompt."""
    if tokens <= BEFORE_LETTERS:
        raise UsageError(f"--tokens {tokens}: a prompt has at least {BEFORE_LETTERS + 1}")
    letters = np.array(list(string.ascii_lowercase))
    return "".join(np.random.default_rng(tokens).choice(letters, tokens - BEFORE_LETTERS))


def results_of(args: argparse.Namespace, kind: type[records.R]) -> records.Results[records.R]:
    """Return earlier results, merged with those of `--from`. Raises UsageError, and EnvironmentFault if the page cannot
    be written."""
    if not args.no_page:
        growth.need_matplotlib()
    if args.other is not None and not args.other.exists():
        raise UsageError(f"{args.other} does not exist")
    results = records.load(kind, args.results)
    return results if args.other is None else records.merged(results, records.load(kind, args.other))


def shape_fields(model: RandomModel, size: int) -> dict[str, Any]:
    """Return fields of a `Record`: the date, and the model with a file of this size."""
    fields = {**asdict(model.shape), "type": model.kind, "file_bytes": size}
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), **fields}
