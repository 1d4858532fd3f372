"""Recognition of files that are no ONNX models, by their first bytes. Used by `load` only.

Each of these beginnings is one that no ONNX file can have: a model begins with the tag of one of
its fields, and none of them is a printable character that other formats start with.
"""

from __future__ import annotations

import re

# (offset, bytes there, what such a file is, what to do).
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (4, b"TFL3", "a TensorFlow Lite model", "convert it with tf2onnx"),
    (4, b"ORTM", "a model in ORT format", "give the .onnx file it was made from"),
    (0, b"version https://git-lfs", "a git-LFS pointer, not the file itself", "run `git lfs pull`"),
    (0, b"PK\x03\x04", "a zip archive (a PyTorch checkpoint, an .npz)", "unpack or export it"),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it"),
    (0, b"BZh", "a bzip2 archive", "unpack it"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it"),
    (0, b"\xfd7zXZ", "an xz archive", "unpack it"),
    (0, b"7z\xbc\xaf", "a 7z archive", "unpack it"),
    (0, b"\x89HDF", "an HDF5 file (Keras)", "convert it with tf2onnx"),
    (0, b"GGUF", "a GGUF model", "export it to ONNX"),
    (0, b"\x93NUMPY", "a numpy array", "give the model instead"),
    (0, b"\x7fELF", "a program", "give the model instead"),
    (0, b"%PDF", "a PDF document", "give the model instead"),
    (0, b"\x89PNG", "a picture", "give the model instead"),
)
_SAFETENSORS = re.compile(rb'.{8}\s*\{\s*"', re.DOTALL)
_PICKLE = re.compile(rb"\x80[\x02-\x05][}\]\x8a\x95c(]")
_HTML = re.compile(rb"\s*(<!doctype html|<html|<\?xml|<head)", re.IGNORECASE)
_JSON = re.compile(rb"\s*\{")
_TEXT_FORMAT = re.compile(
    rb"\s*(#[^\n]*\n\s*)*(ir_version|graph|opset_import|producer_name)\s*[:{]"
)
_ONNX_TEXT = re.compile(rb"\s*<\s*\n?\s*ir_version")


def unlike_onnx(data: bytes) -> str:
    """Return what a file looks like and what to do about it; "" where it may be an ONNX model."""
    start = data[:4096]
    if not start:
        return "an empty file; was the download interrupted?"
    if not any(start):
        return "a file of zeros; copy it again"
    for offset, magic, what, advice in _MAGIC:
        if start[offset : offset + len(magic)] == magic:
            return f"{what}; {advice}"
    for pattern, what in (
        (_HTML, "a web page; was the download redirected to a login or an error page?"),
        (_TEXT_FORMAT, "a model in protobuf's text format; save it as binary protobuf"),
        (_ONNX_TEXT, "a model in ONNX's text syntax; save it as binary protobuf"),
        (_PICKLE, "a pickle (a PyTorch checkpoint, a compiled artifact); export it to ONNX"),
        (_SAFETENSORS, "a safetensors file: weights without a graph; export the model to ONNX"),
        (_JSON, "JSON text; save the model as binary protobuf"),
    ):
        if pattern.match(start):
            return what
    return ""
