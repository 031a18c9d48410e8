"""Known layouts of llama.h's structs, by release, and detection of a library's layout.

Structs passed by value have no version of their own. So the library is probed: `*_default_params` writes into a buffer
with a pattern, which shows which bytes it writes, and the defaults documented in llama.h must be where a layout has
them. Layouts that still cannot be distinguished must have the members we use in the same places. A library that matches
no layout is refused.

The members used here exist since the releases of August 2025, which introduced `use_extra_bufts`; without it, weights
are always repacked for the CPU.
"""

from __future__ import annotations

import ctypes as c
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

#: bool (ask | result): see `worker.model`.
EvalCallback = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_bool, c.c_void_p)

_ROOM, _PATTERNS = 4096, (0x00, 0xFF)


class ForeignAbi(RuntimeError):
    """A library with an unknown layout."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The members of a struct, in order.

    Args:
        releases: llama.cpp releases with this layout, in words.
        members: their names.
        types: member name → ctypes type.
    """

    releases: str
    members: tuple[str, ...]
    types: Mapping[str, Any]

    @cached_property
    def struct(self) -> Any:
        """The ctypes struct. If flash attention is a boolean member, `flash_attn_type` is a property."""
        own: dict[str, Any] = {"_fields_": [(name, self.types[name]) for name in self.members]}
        if "flash_attn" in self.members:
            own["flash_attn_type"] = property(_flash_attn_type, _set_flash_attn_type)
        return type("Params", (c.Structure,), own)

    def places(self, names: tuple[str, ...]) -> list[tuple[int, int]]:
        """Return offset and size of members; (-1, 0) for one that this layout has in another form."""
        found = [getattr(self.struct, name) for name in names]
        return [(-1, 0) if isinstance(each, property) else (each.offset, each.size) for each in found]

    def unlike(self, written: bytes, at: bytes, defaults: Mapping[str, Any]) -> str:
        """Say why a library's defaults do not match this layout; "" if they do.

        Args:
            written: 1 for each byte that the library writes, otherwise 0.
            at: the bytes.
            defaults: the documented defaults.
        """
        values = self.struct.from_buffer_copy(at)
        for name in self.members:
            field = getattr(self.struct, name)
            if not all(written[field.offset : field.offset + field.size]):
                return f"does not write {name}"
        for name in self.members:
            got = getattr(values, name)
            if name in defaults and got != defaults[name]:
                return f"has {name} = {got!r}, not {defaults[name]!r}"
        return ""


def _flash_attn_type(params: Any) -> int:
    return int(params.flash_attn)


def _set_flash_attn_type(params: Any, value: int) -> None:
    """Set the flag from 1 or 0; -1 means llama.cpp's own choice, here the default."""
    if value >= 0:
        params.flash_attn = bool(value)


@dataclass(frozen=True)
class Struct:
    """A struct and its layouts.

    Args:
        name: in llama.h.
        used: members that this project sets.
        defaults: defaults documented in llama.h, of members in every part of the struct.
        layouts: from old to new.
    """

    name: str
    used: tuple[str, ...]
    defaults: Mapping[str, Any]
    layouts: tuple[Layout, ...]

    def layout_of(self, write: Callable[[int], Any]) -> Layout:
        """Return the layout of a library.

        Args:
            write: a call of the library that writes the struct to an address.

        Raises ForeignAbi; its one line describes the library's layout.
        """
        filled = [_filled(write, pattern) for pattern in _PATTERNS]
        written = bytes(a == b for a, b in zip(*filled, strict=True))
        align = c.alignment(c.c_void_p)
        size = -(-(written.rfind(1) + 1) // align) * align
        same_size = [each for each in self.layouts if c.sizeof(each.struct) == size]
        unlike = {each: each.unlike(written, filled[0], self.defaults) for each in same_size}
        fitting = [each for each in same_size if not unlike[each]]
        if not same_size:
            known = "; ".join(f"{c.sizeof(each.struct)} in {each.releases}" for each in self.layouts)
            raise ForeignAbi(f"struct {self.name} has {size} bytes, unlike any known layout: {known}")
        if not fitting:
            why = "; ".join(f"compared with {each.releases}, it {unlike[each]}" for each in same_size)
            raise ForeignAbi(f"struct {self.name} has {size} bytes, but an unknown layout: {why}")
        if any(each.places(self.used) != fitting[-1].places(self.used) for each in fitting):
            names = " and of ".join(each.releases for each in fitting)
            raise ForeignAbi(f"struct {self.name} may have the layout of {names}: they cannot be distinguished")
        return fitting[-1]


def _filled(write: Callable[[int], Any], pattern: int) -> bytes:
    """Return a buffer that held a pattern, after a library's call wrote to it."""
    buffer = (c.c_ubyte * _ROOM)(*([pattern] * _ROOM))
    write(c.addressof(buffer))
    return bytes(buffer)


def writes(function: Any) -> Callable[[int], Any]:
    """Turn a library's function that returns a struct by value into one that writes it to an address. Raises ForeignAbi
    if that is impossible."""
    if platform.machine() != "x86_64":
        # on x86-64, the first argument is the address for a result in memory, so it can be a buffer of this module
        raise ForeignAbi("builds other than llama-cpp-python's can be checked on x86-64 only")
    as_procedure = c.CFUNCTYPE(c.c_void_p, c.c_void_p)
    return as_procedure(c.cast(function, c.c_void_p).value or 0)


def _layouts(types: Mapping[str, Any], *known: tuple[str, str]) -> tuple[Layout, ...]:
    return tuple(Layout(releases, tuple(members.split()), types) for releases, members in known)


_MODEL_TYPES = {
    **dict.fromkeys((
        "devices", "tensor_buft_overrides", "tensor_split", "progress_callback", "progress_callback_user_data",
        "kv_overrides",
    ), c.c_void_p),
    **dict.fromkeys(("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu"), c.c_int32),
    **dict.fromkeys((
        "vocab_only", "use_mmap", "use_direct_io", "use_mlock", "check_tensors", "use_extra_bufts", "no_host",
        "no_alloc", "load_mtp",
    ), c.c_bool),
}  # fmt: skip
_HEAD = "devices tensor_buft_overrides n_gpu_layers split_mode"
_MIDDLE = "main_gpu tensor_split progress_callback progress_callback_user_data kv_overrides vocab_only"

MODEL_PARAMS = Struct(
    name="llama_model_params",
    used=("devices", "n_gpu_layers", "split_mode", "main_gpu", "use_extra_bufts"),
    defaults={
        "devices": None,
        "split_mode": 1,
        "main_gpu": 0,
        "kv_overrides": None,
        "vocab_only": False,
        "use_mmap": True,
        "use_mlock": False,
        "check_tensors": False,
        "use_extra_bufts": True,
        "no_host": False,
        "no_alloc": False,
    },
    layouts=_layouts(
        _MODEL_TYPES,
        ("b6301 and b6673", f"{_HEAD} {_MIDDLE} use_mmap use_mlock check_tensors use_extra_bufts"),
        ("b7324 and b7347", f"{_HEAD} {_MIDDLE} use_mmap use_mlock check_tensors use_extra_bufts no_host"),
        (
            "b7698 to b10068",
            f"{_HEAD} {_MIDDLE} use_mmap use_direct_io use_mlock check_tensors use_extra_bufts no_host no_alloc",
        ),
        ("b10361", f"{_HEAD} load_mode {_MIDDLE} check_tensors use_extra_bufts no_host no_alloc load_mtp"),
        (
            "v0.4.0 and v0.5.0",
            f"{_HEAD} load_mode lazy_mode {_MIDDLE} check_tensors use_extra_bufts no_host no_alloc load_mtp",
        ),
    ),
)

_CONTEXT_TYPES = {
    **dict.fromkeys((
        "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq",
        "yarn_orig_ctx",
    ), c.c_uint32),
    **dict.fromkeys((
        "n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type", "pooling_type", "attention_type",
        "flash_attn_type", "type_k", "type_v",
    ), c.c_int32),
    **dict.fromkeys((
        "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow",
        "defrag_thold",
    ), c.c_float),
    "cb_eval": EvalCallback,
    **dict.fromkeys((
        "cb_eval_user_data", "abort_callback", "abort_callback_data", "samplers", "ctx_other",
    ), c.c_void_p),
    **dict.fromkeys((
        "embeddings", "offload_kqv", "flash_attn", "no_perf", "op_offload", "swa_full", "kv_unified",
    ), c.c_bool),
    "n_samplers": c.c_size_t, "moe_cache_size": c.c_size_t,
}  # fmt: skip
_COUNTS = "n_ctx n_batch n_ubatch n_seq_max"
_THREADS = "n_threads n_threads_batch"
_KINDS = "rope_scaling_type pooling_type attention_type"
_NUMBERS = (
    "rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow yarn_orig_ctx "
    "defrag_thold cb_eval cb_eval_user_data type_k type_v abort_callback abort_callback_data embeddings offload_kqv"
)
_SWITCHES = "no_perf op_offload swa_full kv_unified"
_AFTER = f"{_THREADS} ctx_type {_KINDS} flash_attn_type {_NUMBERS} {_SWITCHES} samplers n_samplers"
_V0_5 = f"{_COUNTS} n_rs_seq n_outputs_max n_outputs_max_per_seq {_AFTER} ctx_other"

CONTEXT_PARAMS = Struct(
    name="llama_context_params",
    used=(
        "n_ctx",
        "n_batch",
        "n_ubatch",
        "n_seq_max",
        "n_threads",
        "n_threads_batch",
        "pooling_type",
        "flash_attn_type",
        "cb_eval",
        "type_k",
        "type_v",
        "embeddings",
        "offload_kqv",
        "no_perf",
        "op_offload",
        "kv_unified",
    ),
    defaults={
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "rope_scaling_type": -1,
        "pooling_type": -1,
        "attention_type": -1,
        "flash_attn_type": -1,
        "rope_freq_base": 0.0,
        "rope_freq_scale": 0.0,
        "yarn_ext_factor": -1.0,
        "yarn_orig_ctx": 0,
        "ctx_type": 0,
        "cb_eval_user_data": None,
        "type_k": 1,
        "type_v": 1,
        "abort_callback": None,
        "embeddings": False,
        "offload_kqv": True,
        "samplers": None,
        "n_samplers": 0,
        "ctx_other": None,
    },
    layouts=_layouts(
        _CONTEXT_TYPES,
        ("b6301", f"{_COUNTS} {_THREADS} {_KINDS} {_NUMBERS} flash_attn {_SWITCHES}"),
        ("b6673 to b7347", f"{_COUNTS} {_THREADS} {_KINDS} flash_attn_type {_NUMBERS} {_SWITCHES}"),
        (
            "b7698 to b8390",
            f"{_COUNTS} {_THREADS} {_KINDS} flash_attn_type {_NUMBERS} {_SWITCHES} samplers n_samplers",
        ),
        ("llama-cpp-python 0.3.24", f"{_COUNTS} n_rs_seq {_AFTER}"),
        ("llama-cpp-python 0.3.26", f"{_COUNTS} n_rs_seq n_outputs_max {_AFTER}"),
        ("b9842 and b10068", f"{_COUNTS} n_rs_seq n_outputs_max {_AFTER} ctx_other"),
        ("b10361 to v0.5.0", _V0_5),
        ("b11548 and newer", _V0_5.replace(" type_v ", " type_v moe_cache_size ")),
    ),
)
