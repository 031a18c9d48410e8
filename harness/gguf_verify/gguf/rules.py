"""Rules: every fault that can be found in a file, as data, one rule for each finding id.

A rule's number and slug are stable, and so is its effect. The parser and the checks of this package use the rules below
100; `gguf_verify.audit` uses the others. The documentation's page of findings is generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["refuse", "error", "warning", "note"]


@dataclass(frozen=True)
class Rule:
    """One kind of fault of a file.

    Args:
        number: the stable part of the id.
        slug: the readable part of the id; equally stable.
        effect: "refuse": reading on would be unsafe or ambiguous (exit 4). "error": the bytes are well defined, but
            wrong (exit 1). "warning": llama.cpp can still use the file, or its metadata contradict it (exit 0; exit 1
            with --strict). "note": worth knowing (exit 0).
        why: why it matters, as stated in each finding.
        cause: how such files come about, in a sentence.
        cure: what to do about it, in a sentence.
    """

    number: int
    slug: str
    effect: Effect
    why: str
    cause: str
    cure: str

    @property
    def id(self) -> str:
        """The id in findings, reports and the documentation, e.g. `GGUF-013-duplicate-key`."""
        return f"GGUF-{self.number:03d}-{self.slug}"


_WRITER = "The program that wrote the file has a bug, or the file was altered by hand."
_DAMAGED = "The file was damaged, or crafted to harm its readers."
_AGAIN = "Download or convert the file again."
_REWRITE = "Write the file again with gguf-py or llama.cpp's own tools."
_DISTRUST = "Do not load the file; ask the publisher for a valid one."
_KEY = "Correct the key with gguf-py's gguf_set_metadata.py or gguf_new_metadata.py."

_RULES = (
    # the header
    Rule(
        1, "truncated", "refuse", "the file ends inside its own header, so what it describes is not known",
        "A download, a copy or a conversion stopped early, or a number in the header is damaged.", _AGAIN,
    ),
    Rule(
        2, "magic", "refuse", "only a file that starts with GGUF can be read as one",
        "The file has another format (safetensors, the older GGML), or is an error page or a Git LFS pointer that was "
        "saved under this name.",
        "Check that the download is the model and no error page; convert other formats with llama.cpp's "
        "convert_hf_to_gguf.py.",
    ),
    Rule(
        3, "version", "refuse", "versions 2 and 3 share one layout; others are laid out differently or not known",
        "The file was written in 2023 (version 1), by something newer than this project, or its header is damaged.",
        "Convert the model again with a current llama.cpp.",
    ),
    Rule(
        4, "big-endian", "refuse", "llama.cpp on a little-endian machine reads every number of such a file wrong",
        "The file was made for a big-endian machine, such as s390x.",
        "Convert it with gguf-py's gguf_convert_endian.py.",
    ),
    Rule(
        5, "tensor-count", "refuse",
        "no model has that many tensors: a mixture of experts with a tensor for each expert has some 75,000",
        _DAMAGED, _DISTRUST,
    ),
    Rule(
        6, "key-count", "refuse", "no model has that many keys: known ones have fewer than 100",
        _DAMAGED, _DISTRUST,
    ),
    Rule(
        7, "metadata-size", "refuse",
        "no model's metadata are so large, and keeping them would take unbounded memory",
        _DAMAGED, _DISTRUST,
    ),
    # keys and values
    Rule(
        10, "string-length", "refuse", "the string is longer than the 1 GiB that llama.cpp reads",
        _DAMAGED, _DISTRUST,
    ),
    Rule(
        11, "empty-key", "refuse", "a value without a name belongs to nothing, and llama.cpp refuses it",
        _WRITER, _REWRITE,
    ),
    Rule(
        12, "long-key", "error", "the GGUF specification ends keys at 65535 bytes, and readers may rely on it",
        _WRITER, "Give the key a shorter name.",
    ),
    Rule(
        13, "duplicate-key", "refuse", "readers differ in which of the values they use",
        "A tool added a key that was there already, or someone wants two readers to see two models.",
        "Keep one of the values and write the file again with gguf-py.",
    ),
    Rule(
        14, "nul-in-name", "refuse",
        "llama.cpp ends a name at its first NUL, other readers do not: it has two names",
        "The writer wrote fixed-size, zero-padded names, or someone wants two readers to see two models.", _REWRITE,
    ),
    Rule(
        15, "bad-utf8", "error", "GGUF strings are UTF-8; gguf-py fails on such a string, llama.cpp passes it on",
        "A converter wrote a tokenizer's raw bytes, or cut a string within a character.",
        "Correct the string at its source and convert the model again.",
    ),
    Rule(
        16, "value-type", "refuse",
        "the length of an unknown value is not known, so nothing after it can be read",
        "The file is damaged, or newer than this project.", _AGAIN,
    ),
    Rule(
        17, "bool-value", "error", "GGUF allows 0 and 1 only; whether 2 is true depends on the reader",
        _WRITER, _KEY,
    ),
    Rule(
        18, "array-length", "refuse", "the array has more than the 2^30 elements that llama.cpp reads",
        _DAMAGED, _DISTRUST,
    ),
    Rule(
        19, "nested-array", "error",
        "the GGUF specification allows an array in an array, llama.cpp refuses the file",
        "The writer stored a list of lists.", "Store the values as one flat array.",
    ),
    Rule(
        20, "nested-too-deep", "refuse", "no reader needs it, and it can exhaust one that recurses",
        _DAMAGED, _DISTRUST,
    ),
    # alignment
    Rule(
        25, "alignment-type", "refuse", "general.alignment is a uint32 by specification; llama.cpp refuses others",
        _WRITER, _REWRITE,
    ),
    Rule(
        26, "alignment-value", "refuse", "where the data begin cannot be computed from it",
        "The alignment is 0 or not a power of two: the writer has a bug, or the file is damaged.", _REWRITE,
    ),
    Rule(27, "alignment-huge", "refuse", "the data would begin past the end of the file", _DAMAGED, _DISTRUST),
    Rule(
        28, "alignment-small", "warning",
        "the GGUF specification asks for a multiple of 8; smaller ones leave tensors misaligned in memory",
        "Someone set general.alignment below 8 to save space.", "Write the file again with the default of 32.",
    ),
    # tensor descriptions
    Rule(
        30, "empty-tensor-name", "warning", "a tensor without a name cannot be looked up",
        _WRITER, "Name the tensor, or leave it out.",
    ),
    Rule(
        31, "long-tensor-name", "refuse", "llama.cpp holds 63 bytes of name and refuses the file",
        "A converter kept the long names of another framework.", "Map the names to llama.cpp's and convert again.",
    ),
    Rule(
        32, "duplicate-tensor", "refuse", "readers differ in which of the tensors they use",
        "A tool added a tensor that was there already, or someone wants two readers to see two models.",
        "Keep one of the tensors and write the file again.",
    ),
    Rule(
        33, "too-many-dimensions", "refuse", "ggml tensors have at most 4 dimensions",
        "A converter kept a shape of another framework, or the file is damaged.",
        "Reshape the tensor to at most 4 dimensions and convert again.",
    ),
    Rule(
        34, "negative-dimension", "refuse", "dimensions are signed to ggml: at 2^63 and above they are negative",
        _DAMAGED, _DISTRUST,
    ),
    Rule(
        35, "dimensions-overflow", "refuse", "the size of the tensor does not fit in 63 bits and would wrap",
        _DAMAGED, _DISTRUST,
    ),
    Rule(
        36, "tensor-type", "refuse", "the size of a block is not known, so neither is the size of the tensor",
        "The type was removed from ggml, belongs to a fork of it, or is newer than this project.",
        "Convert the model again to a type of the supported llama.cpp.",
    ),
    Rule(
        37, "partial-block", "refuse", "blocks never span rows, so the bytes of such a row are not defined",
        "A converter quantized a tensor whose rows are no multiple of the block.",
        "Quantize with llama.cpp, which keeps such a tensor in another type.",
    ),
    # where the data lie
    Rule(
        40, "offset-outside", "refuse", "the tensor's bytes are not in the file",
        "The file is cut, damaged or crafted.", _AGAIN,
    ),
    Rule(
        41, "offset-misaligned", "refuse",
        "tensor data start at multiples of the alignment; llama.cpp refuses others",
        _WRITER, _REWRITE,
    ),
    Rule(
        42, "overlap", "refuse", "bytes that belong to two tensors cannot mean both",
        "The writer shared bytes between tensors, or the file is crafted.",
        "Write each tensor's bytes once for each tensor.",
    ),
    Rule(
        43, "offset-order", "error",
        "llama.cpp refuses tensors whose data do not follow in the order of the descriptions; gguf-py reads them",
        "The writer sorted the descriptions after it had placed the data.", _REWRITE,
    ),
    Rule(
        44, "gap", "warning",
        "bytes that no tensor owns could hide anything; all tensors keep their meaning, yet llama.cpp v0.5.0 does not "
        "load the file",
        "A tensor's description was removed, or something was hidden in the file.", _REWRITE,
    ),
    Rule(
        45, "zero-with-data", "error", "a tensor with a zero dimension has no bytes, but the file holds some for it",
        _WRITER, _REWRITE,
    ),
    Rule(
        46, "data-truncated", "refuse", "the last bytes of a tensor are missing",
        "A download, a copy or a conversion stopped early.", _AGAIN,
    ),
    Rule(
        47, "padding-cut", "warning",
        "all tensors are whole, but a reader that maps whole aligned pieces would read past the end",
        "The writer did not pad the last tensor, or the file was cut there.", _REWRITE,
    ),
    Rule(
        48, "trailing", "warning", "no reader uses bytes after the last tensor, so they could hide anything",
        "Something was appended to the file, such as a signature, an archive or a payload.",
        "Look at the bytes; cut the file where the last tensor's padding ends.",
    ),
    Rule(
        49, "nonzero-padding", "warning",
        "padding is zero by specification; no reader uses other bytes, so they could hide anything",
        "The writer left uninitialised memory in the padding, or something was hidden there.", _REWRITE,
    ),
    # split files
    Rule(
        60, "split-first", "refuse", "the metadata are in the first part, and llama.cpp can only start from it",
        "A later part of a split model was named.", "Name the first part, which ends in -00001-of-… .",
    ),
    Rule(
        61, "split-part-missing", "refuse", "the tensors of a missing part cannot be verified",
        "Not all parts were downloaded, or some are in another folder.", "Put all parts into the first one's folder.",
    ),
    Rule(
        62, "split-inconsistent", "refuse", "the parts do not belong together",
        "Parts of two models were mixed, or a part was renamed.",
        "Download all parts from one place again, and keep their names.",
    ),
    # what the metadata say, against the tensors
    Rule(
        80, "file-type", "warning", "general.file_type names a type that no tensor has; tools show it to users",
        "The file was quantized again, or edited, by a tool that left the key as it was.", _KEY,
    ),
    Rule(
        81, "file-name", "warning", "the file's name promises a quantization that no tensor has",
        "The file was renamed, or another one was published under its name.",
        "Rename the file after the types that it holds.",
    ),
    Rule(
        82, "block-count", "warning", "llama.cpp loads as many layers as this key says",
        "Layers were removed or merged and the key was left as it was.", _KEY,
    ),
    Rule(
        83, "embedding-length", "warning",
        "llama.cpp sizes its graph by this key and refuses tensors that differ",
        "The key was copied from another model.", _KEY,
    ),
    Rule(
        84, "vocabulary-size", "warning", "each token needs a row of the embedding, and each row a token",
        "Tokens were added without resizing the embedding, or the embedding was padded without adding tokens.",
        "Convert the model again with the tokenizer that belongs to it.",
    ),
    Rule(
        85, "feed-forward-length", "warning", "llama.cpp expects feed-forward tensors of this size",
        "The key was copied from another model.", _KEY,
    ),
    Rule(
        86, "head-count", "warning",
        "llama.cpp splits attention by these keys and expects tensors of that size",
        "The keys were copied from another model.", _KEY,
    ),
    Rule(
        87, "expert-count", "warning", "llama.cpp expects as many experts in each expert tensor",
        "Experts were removed or merged and the key was left as it was.", _KEY,
    ),
    Rule(
        88, "key-type", "warning", "llama.cpp refuses a key whose value is not of the type that it expects",
        "The key was written with another type, for instance as a string.", _KEY,
    ),
    Rule(
        89, "special-token", "warning",
        "llama.cpp takes a default for a token outside the vocabulary, so a reply may never end; other programs index "
        "with it",
        "The key was copied from another model, or tokens were removed.", _KEY,
    ),
    Rule(
        90, "merges", "warning",
        "a merge of texts that are no tokens never applies, so text is split into other tokens",
        "The merges belong to another vocabulary, or a converter cut one of the two lists.",
        "Convert the model again with the tokenizer that belongs to it.",
    ),
    Rule(
        91, "key-not-finite", "error", "no result that is computed with such a number can be right",
        "A converter divided by zero or read the configuration wrongly, or the file is damaged.",
        "Correct the key by the model's own configuration, or convert the model again.",
    ),
    Rule(
        92, "key-range", "error",
        "llama.cpp or float32 has no meaning for such a value, or another key contradicts it",
        "A converter did not know the value and wrote a placeholder, or the file was altered or damaged.",
        "Correct the key by the model's own configuration with gguf-py's gguf_set_metadata.py.",
    ),
    Rule(
        93, "token-type", "warning",
        "llama.cpp gives a token of an unknown type no attributes, and writes no text for one that is unused",
        "A converter numbered the types in another way, or the file is damaged.",
        "Convert the model again with the tokenizer that belongs to it.",
    ),
    Rule(
        94, "key-unknown", "warning",
        "llama.cpp has no code for such a value: it refuses the file, or ignores the value",
        "The file was made by a newer program, or the key was edited or damaged.",
        "Use a newer llama.cpp; otherwise correct the key to match the model's own configuration.",
    ),
    Rule(
        95, "chat-template", "warning",
        "programs cannot apply a template that does not parse: they refuse chats, or format them in another way than "
        "the model was trained with",
        "The template was cut or edited by hand.",
        "Take the template of the original model; set it with gguf-py's gguf_new_metadata.py.",
    ),
    # content: what the tensors' bytes mean
    Rule(
        100, "scale-not-finite", "error", "no result that is computed from such a block can be right",
        "The model's weights overflowed a half when they were quantized, or the file is damaged.",
        "Check the source model for weights beyond 65504; quantize or download it again.",
    ),
    Rule(
        101, "value-not-finite", "error", "no result that is computed from such a value can be right",
        "Training diverged, or weights overflowed a half when they were converted.",
        "Check the source model; keep this tensor in BF16 or F32.",
    ),
    Rule(
        102, "decode-differs", "error", "this project and llama.cpp decode the block differently",
        "This project or this build of llama.cpp decodes the type wrongly.",
        "Report it with the block's bytes, which the finding shows.",
    ),
    Rule(
        103, "scale-subnormal", "note",
        "a subnormal half keeps fewer than 11 bits of the scale, and code that computes in half may flush it to zero",
        "The block's weights are tiny.", "Nothing needs to be done unless a kernel loses these blocks.",
    ),
    Rule(
        104, "unowned", "error", "a byte that no one field owns could mean anything: the parser is wrong",
        "This project has a bug.", "Report it, with the file if you can.",
    ),
    Rule(
        105, "one-sided", "warning",
        "weights of one sign are rare, and a quantizer that loses the sign of codes leaves just such tensors",
        "All values of the tensor have one sign, or what wrote it lost the sign (llama.cpp issue 28438).",
        "Compare with the original by --source.",
    ),
    Rule(
        106, "signs-lost", "error",
        "no model has weights of one sign in all of its tensors, so the sign was lost and the weights are wrong",
        "What wrote the file lost the sign of the codes, as gguf-py with NumPy 1.x did (llama.cpp issue 28438).",
        "Quantize the original again, with another version of the program.",
    ),
    Rule(
        107, "codes-unused", "warning",
        "llama.cpp's quantizer uses these codes for any ordinary weights that were not quantized before",
        "The tensor was quantized from values that had been quantized before, or what wrote the file clamps codes to a "
        "narrower range, loses one of their bits, or chooses scales otherwise.",
        "Quantize the original weights, in F16, BF16 or F32; compare with them by --source.",
    ),
    Rule(
        108, "zero-bytes", "warning",
        "weights are no long run of zero bytes; a download that was preallocated and never finished looks like this",
        "A download, a copy or a conversion stopped early, or a file system lost blocks of the file.",
        "Compare the file's SHA-256 with the publisher's; download or convert it again.",
    ),
    Rule(
        109, "one-value", "warning",
        "such a tensor holds no information, and any kernel that writes one value computes its products",
        "The weights were lost, pruned, or never trained.",
        "Compare with the original by --source; convert or download the file again.",
    ),
    # other readers
    Rule(
        110, "llama-refuses", "error", "llama.cpp does not load the file",
        "A key, a tensor or a part of the vocabulary is missing, superfluous or wrong: a bug of the converter, or an "
        "edit by hand.",
        "Read llama.cpp's message in the finding; convert the model again with a current llama.cpp.",
    ),
    Rule(
        111, "gguf-py-refuses", "warning",
        "tools built on gguf-py cannot read the file, and no other finding says why",
        "gguf-py does not know a type or a layout that llama.cpp reads.", "Update gguf-py, or tell its users.",
    ),
    Rule(
        112, "reader-verdict", "note", "a reader's verdict is not ours; another finding says what is wrong",
        "Readers are stricter or laxer about the same fault.", "Fix the other finding.",
    ),
    Rule(
        113, "reader-differs", "error", "two readers see different tensors in the same bytes",
        "A reader has a bug, or the file is crafted so that tools and llama.cpp see different models.",
        "Do not load the file before you know which reader is wrong.",
    ),
    Rule(
        114, "reader-broke", "warning",
        "a file's author can make a reader crash if it crashes on such a file",
        "The reader has a bug that this file meets.",
        "Report it to the reader's authors, and do not load the file with it.",
    ),
    Rule(
        115, "llama-architecture", "warning",
        "llama.cpp has no code for the architecture, so it loads nothing of the file",
        "The architecture is newer than this llama.cpp, belongs to another program, or is misspelt.",
        "Use the program that the file was made for, or a newer llama.cpp; otherwise correct general.architecture.",
    ),
    # content, compared with the rest of it
    Rule(
        116, "outlier", "warning", "no block of real weights is so much larger than all others, and it drowns them",
        "A bit of a scale or value was flipped in memory, on a disk or on the way.",
        "Compare the file's SHA-256 with the publisher's, or with the original by --source.",
    ),
    Rule(
        117, "copy", "warning", "trained matrices differ, so one of the two is missing",
        "A converter wrote one matrix under two names, or a merge took it twice.",
        "Compare with the original by --source; convert the model again.",
    ),
    Rule(
        118, "repeated-bytes", "warning",
        "no quantized weights repeat like this: it is a pattern that fills memory or a disk, or another file's text",
        "A page of the file was overwritten, by a fault of memory, a disk or a download, or was never written.",
        "Compare the file's SHA-256 with the publisher's; download or convert it again.",
    ),
    # against the source
    Rule(
        120, "source-differs", "error", "the tensor is not what llama.cpp makes of the source",
        "The file was made of other weights, of the same weights in another precision, by another version or "
        "quantizer, or with another importance matrix; or it was altered.",
        "Quantize the source with llama.cpp and compare, or ask the publisher how the file was made.",
    ),
    Rule(
        121, "source-missing", "error", "the source holds no tensor of that name and shape to make it from",
        "The source is not the model that the file was made of, or tensors were added.", "Name the right source.",
    ),
    Rule(
        122, "source-left", "warning", "a tensor of the source did not come along",
        "The converter leaves the tensor out on purpose, or it was lost.",
        "Check whether the architecture needs the tensor.",
    ),
    Rule(
        123, "source-codes", "error",
        "the best code under a given scale is the nearest one, whatever the importance of the value, so no quantizer "
        "of llama.cpp made these from the source",
        "The tensor was made of other weights, its rows are in another order, or its codes were damaged or packed "
        "wrongly.",
        "Look at the block with --offset; quantize the source again.",
    ),
    Rule(
        124, "source-scale", "error",
        "a scale is fitted to its codes, and no weights of the values make this one the best",
        "Scales were damaged, exchanged, or stored in another precision or order.",
        "Look at the block with --offset; quantize the source again.",
    ),
    Rule(
        125, "source-far", "error",
        "zeros would be nearer to the source, so the block or its row was not made of it",
        "Rows or blocks are in another order, signs were lost, a scale was damaged, or the source is of another model.",
        "Compare with the right source; quantize it again.",
    ),
    Rule(
        126, "source-outlier", "warning",
        "an importance matrix weights all rows equally, so blocks rarely differ so much from others of their tensor",
        "A scale may be damaged by less than can be proven, or a few weights are much larger than the others.",
        "Give the importance matrix with --imatrix, which proves each byte.",
    ),
    Rule(
        127, "source-importance", "note",
        "codes and scales are ones that llama.cpp may choose with an importance matrix, which is not at hand",
        "The file was quantized with an importance matrix.",
        "Give it with --imatrix to have every byte compared.",
    ),
    Rule(
        128, "source-key", "warning",
        "programs compute with this key, so the file is another model than its source, though its tensors are the same",
        "The key was edited on purpose, as chat templates are, or a converter or a merge took it from another model.",
        "Compare both values with the model's own configuration; correct the wrong one with gguf-py's "
        "gguf_set_metadata.py.",
    ),
    Rule(
        129, "source-exchanged", "error",
        "the tensor was made of the source, but of other rows or another tensor of it",
        "A converter exchanged tensors of one shape, or permuted rows for a rotary embedding twice or by the wrong "
        "number of heads.",
        "Convert the original again with another version of the converter.",
    ),
)  # fmt: skip

#: Keyed by slug.
RULES: dict[str, Rule] = {rule.slug: rule for rule in _RULES}
