"""Text files of a model, whose size is checked before memory is taken."""

from pathlib import Path

MAX_TEXT_BYTES = 256 * 2**20
"""Vocabularies of a quarter of a million tokens, with their merges, are files of some 30 MB."""

_PIECE_BYTES = 2**20


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """The content. Raises ValueError if it is no regular file, larger than `max_bytes`, or not UTF-8; OSError."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    content = bytearray()
    with path.open("rb") as file:
        # What is read counts, not what the file system says.
        while piece := file.read(_PIECE_BYTES):
            content += piece
            if len(content) > max_bytes:
                raise ValueError(f"{path} is larger than the {max_bytes} bytes that such a file may have")
    return content.decode("utf-8")
