"""A small model of any one type."""

from __future__ import annotations

from pathlib import Path

import gguf

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FILE_TYPES, decode_elements
from gguf_verify.gguf.model import open_model
from gguf_verify.llama.library import Llama
from tests.support.tools import FIXTURES

F16 = FIXTURES / "tiny-F16.gguf"


def model_of(fmt: BlockFormat, folder: Path, llama: Llama) -> Path:
    """The fixture with every matrix in this type, quantized by llama.cpp (by uniform importance where it needs any)."""
    path = folder / f"tiny-{fmt.name}.gguf"
    if path.exists():
        return path
    if fmt.name not in gguf.GGMLQuantizationType.__members__:  # its writer does not know the type
        llama.quantize_file(F16, path, FILE_TYPES[fmt.name], True)
        return path
    reader = gguf.GGUFReader(F16)
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], element)
    with open_model(F16) as model:
        for tensor in model.tensors.values():
            raw = tensor.raw.reshape(tensor.n_rows, -1)
            values = decode_elements(tensor.type.name, raw.reshape(-1)).reshape(tensor.n_rows, tensor.k)
            if len(tensor.shape) == 1:
                writer.add_tensor(tensor.name, values.reshape(-1))
            else:
                made = llama.quantize(fmt.type_id, values)
                writer.add_tensor(tensor.name, made, raw_dtype=gguf.GGMLQuantizationType(fmt.type_id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
