"""A bounds-checked reader of GGUF files (versions 2 and 3), memory-mapped and fast.

Every count, length and offset of the header is checked against the size of the file before memory is taken or a
byte is read, so that a damaged or hostile file gives a GGUFError and nothing else.
"""

import itertools
import math
import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from deeproot.engine.gguf_types import ARRAY, BOOL, READABLE_TYPES, SCALAR_DTYPES, STRING

MetadataValue = int | float | bool | str | list[Any]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_HEADER_BYTES = 256 * 2**20
"""Vocabularies of a quarter of a million tokens, with their merges, take some 10 MB."""
_MAX_KEYS, _MAX_TENSORS = 2**16, 2**18
"""Beyond reason: a Python object is made of each."""
_MIN_KV_BYTES = 13
"""Length of the key, its type and a value of one byte."""
_MIN_TENSOR_BYTES = 32
"""Length of the name, number of dimensions, one dimension, type and offset."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class GGUFError(ValueError):
    """The file is not GGUF, is damaged, or holds something that is not supported. The message says where."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    """Slowest dimension first, as torch has it (the file has it the other way round)."""
    type: GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class GGUFFile:
    """An open GGUF file: metadata, list of tensors, and their values on demand.

    metadata: key to Python value: int, float, bool, str, or a list of these.
    tensors: name to place, in the order of the file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Raises GGUFError if the content is not sound, OSError if the file cannot be opened."""
        self.path = fspath(path)
        with open(path, "rb") as file:
            try:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise GGUFError(f"{self.path}: the file is empty") from None
        try:
            parser = _HeaderParser(self._map)
            self.version, self.metadata, self.tensors = parser.parse()
        except GGUFError as error:
            self._map.close()
            raise GGUFError(f"{self.path}: {error}") from None

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file. Arrays from `read` stay valid."""
        self._map.close()

    def read(self, name: str) -> NDArray[np.float32]:
        """The dequantised values of a tensor, a new array of the tensor's shape.

        Raises KeyError for an unknown name, GGUFError for a type that cannot be dequantised.
        """
        tensor = self.tensors[name]
        if tensor.type.name not in READABLE_TYPES:
            raise GGUFError(
                f"{self.path}: tensor {name!r} has type {tensor.type.name}, which cannot be dequantised; "
                "convert the file to another type, such as Q8_0"
            )
        # Random bytes hold infinities and NaN too; what they mean is for the model to find out.
        with np.errstate(all="ignore"):
            values = quants.dequantize(self.read_bytes(name), tensor.type)
        return np.array(values, np.float32).reshape(tensor.shape)

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """A tensor as it is stored, `[rows, bytes of a row]`, a copy. Raises KeyError for an unknown name."""
        tensor = self.tensors[name]
        stored = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)
        return stored.reshape(math.prod(tensor.shape[:-1]), -1).copy()


class _HeaderParser:
    """One pass over the header. `_pos` never passes `_end`: whatever is read is claimed by `_take` first."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._file_end = len(data)
        self._end = min(self._file_end, _MAX_HEADER_BYTES)
        self._pos = 0

    def parse(self) -> tuple[int, dict[str, MetadataValue], dict[str, GGUFTensor]]:
        version = self._version()
        num_tensors = self._count("number of tensors", _MIN_TENSOR_BYTES, _MAX_TENSORS)
        num_keys = self._count("number of metadata keys", _MIN_KV_BYTES, _MAX_KEYS)
        metadata: dict[str, MetadataValue] = {}
        for _ in range(num_keys):
            key = self._string("a metadata key")
            if key in metadata:
                raise GGUFError(f"metadata key {key!r} occurs twice")
            metadata[key] = self._value(self._u32(f"type of {key!r}"), key)
        return version, metadata, self._tensors(num_tensors, metadata)

    def _version(self) -> int:
        start = self._take(4, "magic number")
        if self._data[start : start + 4] != _MAGIC:
            raise GGUFError("not a GGUF file (it does not start with 'GGUF')")
        version = self._u32("version")
        if version in _VERSIONS:
            return version
        if version and version & 0xFFFF == 0:
            raise GGUFError("the file is big-endian, which is not supported")
        raise GGUFError(f"GGUF version {version} is not supported (2 and 3 are); convert the model anew")

    def _take(self, num_bytes: int, what: str) -> int:
        """Claim bytes; returns where they start."""
        start = self._pos
        if num_bytes > self._end - start:
            raise GGUFError(
                f"{what}: {num_bytes} bytes wanted at offset {start} of {self._end}; {self._why_too_long()}"
            )
        self._pos = start + num_bytes
        return start

    def _why_too_long(self) -> str:
        if self._end < self._file_end:
            return f"a header may have {_MAX_HEADER_BYTES} bytes at most"
        return "is the file cut off?"

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self._data, self._take(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self._data, self._take(8, what))[0]
        return value

    def _count(self, what: str, min_bytes: int, most: int | None = None) -> int:
        """A number of things of at least `min_bytes` each, which must fit into the rest of the header."""
        count = self._u64(what)
        if count * min_bytes > self._end - self._pos:
            raise GGUFError(f"{what}: {count} cannot fit into a file of {self._file_end} bytes")
        if most is not None and count > most:
            raise GGUFError(f"{what}: {count}, at most {most} are supported")
        return count

    def _string(self, what: str) -> str:
        length = self._u64(what)
        start = self._take(length, what)
        try:
            return self._data[start : start + length].decode()
        except UnicodeDecodeError:
            raise GGUFError(f"{what}: not UTF-8 at offset {start}") from None

    def _strings(self, count: int, what: str) -> list[str]:
        """As `_string`, `count` times, written out: a vocabulary has a hundred thousand."""
        data, pos, end, unpack = self._data, self._pos, self._end, _U64.unpack_from
        strings = []
        try:
            for _ in range(count):
                start = pos + 8
                if start > end:
                    raise GGUFError(f"{what}: the file ends within it")
                pos = start + unpack(data, pos)[0]
                if pos > end:
                    raise GGUFError(f"{what}: a string of {pos - start} bytes at offset {start} of {end}")
                strings.append(data[start:pos].decode())
        except UnicodeDecodeError:
            raise GGUFError(f"{what}: element {len(strings)} is not UTF-8") from None
        self._pos = pos
        return strings

    def _value(self, code: int, key: str) -> MetadataValue:
        what = f"value of {key!r}"
        if code == STRING:
            return self._string(what)
        if code != ARRAY:
            value: MetadataValue = self._numbers(code, 1, what)[0]
            return value
        item_code = self._u32(what)
        if item_code == STRING:
            return self._strings(self._count(what, 8), what)
        if item_code == ARRAY:
            raise GGUFError(f"{what}: arrays of arrays are not supported")
        return self._numbers(item_code, self._u64(what), what)

    def _numbers(self, code: int, count: int, what: str) -> list[Any]:
        dtype = SCALAR_DTYPES.get(code)
        if dtype is None:
            raise GGUFError(f"{what}: unknown type {code}")
        start = self._take(count * dtype.itemsize, what)
        values = np.frombuffer(self._data[start : self._pos], dtype)
        if code == BOOL:
            if values.size and values.max() > 1:
                raise GGUFError(f"{what}: a boolean is neither 0 nor 1")
            values = values.astype(np.bool_)
        items: list[Any] = values.tolist()
        return items

    def _tensors(self, count: int, metadata: dict[str, MetadataValue]) -> dict[str, GGUFTensor]:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise GGUFError(f"general.alignment must be a power of two, got {alignment!r}")
        entries: dict[str, tuple[tuple[int, ...], GGMLQuantizationType, int]] = {}
        for _ in range(count):
            name = self._string("a tensor's name")
            if name in entries:
                raise GGUFError(f"tensor {name!r} occurs twice")
            entries[name] = self._tensor_entry(name)
        data_start = -(-self._pos // alignment) * alignment
        tensors = {name: self._place(name, *entry, data_start, alignment) for name, entry in entries.items()}
        _check_apart(tensors.values())
        return tensors

    def _tensor_entry(self, name: str) -> tuple[tuple[int, ...], GGMLQuantizationType, int]:
        what = f"tensor {name!r}"
        num_dims = self._u32(what)
        if not 1 <= num_dims <= _MAX_DIMS:
            raise GGUFError(f"{what}: {num_dims} dimensions, 1 to {_MAX_DIMS} are supported")
        dims = [self._u64(what) for _ in range(num_dims)]
        code = self._u32(what)
        try:
            kind = GGMLQuantizationType(code)
        except ValueError:
            raise GGUFError(f"{what}: unknown type {code}") from None
        return tuple(reversed(dims)), kind, self._u64(what)

    def _place(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: GGMLQuantizationType,
        offset: int,
        data_start: int,
        alignment: int,
    ) -> GGUFTensor:
        group, group_bytes = GGML_QUANT_SIZES[kind]
        if 0 in shape or shape[-1] % group:
            raise GGUFError(f"tensor {name!r}: shape {list(shape)} does not suit type {kind.name}")
        num_bytes = math.prod(shape) // group * group_bytes
        if offset % alignment:
            raise GGUFError(f"tensor {name!r}: offset {offset} is not a multiple of {alignment}")
        if data_start + offset + num_bytes > self._file_end:
            raise GGUFError(
                f"tensor {name!r}: bytes {data_start + offset} to {data_start + offset + num_bytes} lie past the "
                f"end of the file at {self._file_end}; is the file cut off?"
            )
        return GGUFTensor(name, shape, kind, data_start + offset, num_bytes)


def _check_apart(tensors: Iterable[GGUFTensor]) -> None:
    """Raise GGUFError if two tensors share bytes: then one is not what its name says."""
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in itertools.pairwise(ordered):
        if before.offset + before.num_bytes > after.offset:
            raise GGUFError(f"tensors {before.name!r} and {after.name!r} overlap")
