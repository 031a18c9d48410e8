"""Which layout of llama.h's structs a library has: one that the test compiles plays a library of every layout."""

from __future__ import annotations

import ctypes as c
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.cli import main
from gguf_verify.hosts.compiler import compiler
from gguf_verify.llama.struct_layouts import CONTEXT_PARAMS, MODEL_PARAMS, ForeignAbi, Layout, writes

_MODEL_HEAD = "void *devices, *overrides; int n_gpu_layers, split_mode;"
_MODEL_MIDDLE = "int main_gpu; void *tensor_split, *progress, *progress_data, *kv_overrides; bool vocab_only;"
_MODEL = ".split_mode = 1, .use_extra_bufts = true"
#: Name → members and defaults, as C has them.
MODELS = {
    "model_b6673": (f"{_MODEL_HEAD}{_MODEL_MIDDLE} bool use_mmap, use_mlock, check_tensors, use_extra_bufts;",
                    f"{_MODEL}, .use_mmap = true, .n_gpu_layers = 999"),
    "model_b7347": (f"{_MODEL_HEAD}{_MODEL_MIDDLE} bool use_mmap, use_mlock, check_tensors, use_extra_bufts, no_host;",
                    f"{_MODEL}, .use_mmap = true, .n_gpu_layers = 999"),
    "model_b7836": (f"{_MODEL_HEAD}{_MODEL_MIDDLE} bool use_mmap, use_direct_io, use_mlock, check_tensors,"
                    " use_extra_bufts, no_host, no_alloc;",
                    f"{_MODEL}, .use_mmap = true, .use_direct_io = true, .n_gpu_layers = -1"),
    "model_b10361": (f"{_MODEL_HEAD} int load_mode; {_MODEL_MIDDLE} bool check_tensors, use_extra_bufts, no_host,"
                     " no_alloc, load_mtp;", f"{_MODEL}, .load_mode = 1, .n_gpu_layers = -1"),
    "model_v0_5_0": (f"{_MODEL_HEAD} int load_mode, lazy_mode; {_MODEL_MIDDLE} bool check_tensors, use_extra_bufts,"
                     " no_host, no_alloc, load_mtp;", f"{_MODEL}, .load_mode = -1, .lazy_mode = 1, .n_gpu_layers = -1"),
}  # fmt: skip
_COUNTS = "unsigned n_ctx, n_batch, n_ubatch, n_seq_max;"
_THREADS, _KINDS = "int n_threads, n_threads_batch;", "int rope_scaling_type, pooling_type, attention_type;"
_NUMBERS = (
    "float rope_freq_base, rope_freq_scale, ext, attn, fast, slow; unsigned yarn_orig_ctx; float defrag_thold;"
    "void *cb_eval, *cb_eval_user_data; int type_k, type_v; void *abort, *abort_data; bool embeddings, offload_kqv;"
)
_SWITCHES, _SAMPLERS = "bool no_perf, op_offload, swa_full, kv_unified;", "void *samplers; size_t n_samplers;"
_REST = f"{_THREADS} int ctx_type; {_KINDS} int flash_attn_type; {_NUMBERS} {_SWITCHES} {_SAMPLERS}"
_CONTEXT = (
    ".n_ctx = 512, .n_batch = 2048, .n_ubatch = 512, .n_seq_max = 1, .n_threads = 4, .n_threads_batch = 4,"
    ".rope_scaling_type = -1, .pooling_type = -1, .attention_type = -1, .ext = -1, .attn = -1, .fast = -1, .slow = -1,"
    ".defrag_thold = -1, .type_k = 1, .type_v = 1, .offload_kqv = true, .no_perf = true, .op_offload = true,"
    ".swa_full = true"
)
_FLASH = f"{_CONTEXT}, .flash_attn_type = -1"
CONTEXTS = {
    "context_b6301": (f"{_COUNTS} {_THREADS} {_KINDS} {_NUMBERS} bool flash_attn; {_SWITCHES}", _CONTEXT),
    "context_b7347": (f"{_COUNTS} {_THREADS} {_KINDS} int flash_attn_type; {_NUMBERS} {_SWITCHES}", _FLASH),
    "context_b8390": (f"{_COUNTS} {_THREADS} {_KINDS} int flash_attn_type; {_NUMBERS} {_SWITCHES} {_SAMPLERS}", _FLASH),
    "context_0_3_24": (f"{_COUNTS} unsigned n_rs_seq; {_REST}", _FLASH),
    "context_0_3_26": (f"{_COUNTS} unsigned n_rs_seq, n_outputs_max; {_REST}", _FLASH),
    "context_b10068": (f"{_COUNTS} unsigned n_rs_seq, n_outputs_max; {_REST} void *ctx_other;", _FLASH),
    "context_v0_5_0": (f"{_COUNTS} unsigned n_rs_seq, n_outputs_max, per_seq; {_REST} void *ctx_other;",
                       f"{_FLASH}, .per_seq = 1"),
}  # fmt: skip
_LAST = MODELS["model_v0_5_0"]
OTHERS = {
    "model_larger": (f"{_LAST[0]} void *more[3];", _LAST[1]),
    "model_other_defaults": (_LAST[0], f"{_LAST[1]}, .check_tensors = true"),
    "model_moved": (MODELS["model_b10361"][0].replace("load_mode", "other").replace(
        "bool check_tensors, use_extra_bufts", "bool use_extra_bufts, check_tensors"), f"{_MODEL}, .n_gpu_layers = -1"),
    "context_moved": (CONTEXTS["context_v0_5_0"][0].replace("n_rs_seq, ", "").replace("per_seq;", "per_seq, another;"),
                      f"{_CONTEXT}, .pooling_type = 0"),
}  # fmt: skip
#: As a function that returns a struct is compiled: the address of the result is its argument. It writes no lazy_mode.
_HOLE = f"""
void *model_hole(char *out) {{
    struct model_v0_5_0_t p = {{ {_LAST[1]} }};
    size_t hole = offsetof(struct model_v0_5_0_t, lazy_mode), after = hole + sizeof p.lazy_mode;
    for (size_t i = 0; i < sizeof p; i++)
        if (i < hole || i >= after) ((volatile char *)out)[i] = ((char *)&p)[i];
    return out;
}}
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> c.CDLL:
    folder = tmp_path_factory.mktemp("played")
    text = "#include <stdbool.h>\n#include <stddef.h>\n"
    for name, (members, defaults) in {**MODELS, **CONTEXTS, **OTHERS}.items():
        text += f"struct {name}_t {{ {members} }};\nstruct {name}_t {name}(void) {{\n"
        text += f"    struct {name}_t p = {{ {defaults} }};\n    return p;\n}}\n"
        text += f"size_t size_of_{name}(void) {{ return sizeof(struct {name}_t); }}\n"
        for each in ("main_gpu", "use_extra_bufts") if name in MODELS else ("type_k", "kv_unified", "cb_eval"):
            if name not in OTHERS:
                text += f"size_t {each}_of_{name}(void) {{ return offsetof(struct {name}_t, {each}); }}\n"
    text += _HOLE
    source, library = folder / "played.c", folder / "libplayed.so"
    source.write_text(text)
    words = [compiler(), "-x", "c", "-std=c11", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(words, check=True)
    return c.CDLL(str(library))


def chosen(played: c.CDLL, name: str) -> Layout:
    struct = MODEL_PARAMS if name.startswith("model") else CONTEXT_PARAMS
    return struct.layout_of(writes(getattr(played, name)))


def said(played: c.CDLL, function: str) -> int:
    call: Any = getattr(played, function)
    call.restype = c.c_size_t
    return int(call())


@pytest.mark.parametrize("name", [*MODELS, *CONTEXTS])
def test_each_layout_is_recognised(played: c.CDLL, name: str) -> None:
    """Size and places are those of the C compiler; each is a layout of its own, but for two that differ at the end."""
    layout = chosen(played, name)
    assert c.sizeof(layout.struct) == said(played, f"size_of_{name}")
    for member in ("main_gpu", "use_extra_bufts") if name in MODELS else ("type_k", "kv_unified", "cb_eval"):
        assert getattr(layout.struct, member).offset == said(played, f"{member}_of_{name}")
    names, known = (MODELS, MODEL_PARAMS) if name in MODELS else (CONTEXTS, CONTEXT_PARAMS)
    expected = known.layouts[list(names).index(name)]
    # where the compiler writes padding, `no_host` may be there: nothing that is used differs
    assert layout.places(known.used) == expected.places(known.used)
    if name not in ("model_b6673", "model_b7347"):
        assert layout is expected


def test_flash_attention_as_a_switch(played: c.CDLL) -> None:
    params = chosen(played, "context_b6301").struct()
    for given, switch in ((1, True), (-1, True), (0, False), (-1, False)):
        params.flash_attn_type = given
        assert (params.flash_attn, params.flash_attn_type) == (switch, int(switch))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model_larger", "has 104 bytes, unlike any known layout: 72 in b6301 and b6673; "),
        ("model_other_defaults", "compared with v0.4.0 and v0.5.0, it has check_tensors = True, not False"),
        ("model_moved", "compared with b10361, it has check_tensors = True, not False"),
        ("model_hole", "compared with v0.4.0 and v0.5.0, it does not write lazy_mode"),
        ("context_moved", "compared with b10361 to v0.5.0, it has "),
    ],
)
def test_unknown_layouts_are_rejected(played: c.CDLL, name: str, words: str) -> None:
    with pytest.raises(ForeignAbi) as refused:
        chosen(played, name)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_ambiguous_layouts_are_rejected(played: c.CDLL) -> None:
    """Two layouts of one size, with something used in other places, which both fit."""
    (last,) = (each for each in MODEL_PARAMS.layouts if "lazy_mode" in each.members)
    swapped = tuple({"n_gpu_layers": "lazy_mode", "lazy_mode": "n_gpu_layers"}.get(m, m) for m in last.members)
    both = type(MODEL_PARAMS)(
        MODEL_PARAMS.name, MODEL_PARAMS.used, MODEL_PARAMS.defaults, (last, Layout("another", swapped, last.types))
    )
    with pytest.raises(ForeignAbi, match=r"may have the layout of v0\.4\.0 and v0\.5\.0 and of another: they cannot"):
        both.layout_of(writes(played.model_v0_5_0))


def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import llama_cpp

    from gguf_verify.llama.builds import Build

    installed = Build(Path(llama_cpp.__file__).parent / "lib")
    for name in ("ggml-base", "ggml", "ggml-cpu"):
        found = installed.library(name)
        assert found is not None
        (tmp_path / found.name).symlink_to(found)
    members, defaults = OTHERS["model_larger"]
    source = tmp_path / "played.c"
    source.write_text(
        f"#include <stdbool.h>\nstruct p {{ {members} }};\n"
        f"struct p llama_model_default_params(void) {{ struct p p = {{ {defaults} }}; return p; }}\n"
    )
    words = [compiler(), "-x", "c", "-std=c11", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libllama.so")]
    subprocess.run(words, check=True)
    assert main(["devices", "--llama", str(tmp_path)]) == 3
    line = capsys.readouterr().err
    assert "struct llama_model_params has 104 bytes, unlike any known layout" in line
    assert line.count("\n") == 1
