"""Reads a file of a runtime, whatever its kind."""

from __future__ import annotations

from pathlib import Path

from importers.imported import Imported
from nnhal.errors import UsageError

TFLITE_IDENTIFIER, IDENTIFIER_AT = b"TFL3", 4


def load(path: Path) -> Imported:
    """The graph of a .tflite or ONNX file.

    Raises:
        UsageError: there is no such file, a package is missing, or the file is damaged (`UnreadableFile`).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); name a .tflite or .onnx file") from None
    return load_bytes(data, path.name)


def load_bytes(data: bytes, name: str) -> Imported:
    """The graph of a .tflite or ONNX file's content; which it is the content says.

    Args:
        data: the content.
        name: for messages.

    Raises:
        UsageError: as `load`.
    """
    if data[IDENTIFIER_AT : IDENTIFIER_AT + len(TFLITE_IDENTIFIER)] == TFLITE_IDENTIFIER:
        from importers.tflite_file import import_tflite

        return import_tflite(data, name)
    from importers.onnx_file.reading import import_onnx

    return import_onnx(data, name)
