"""Compiles the C++ sources of this folder for this CPU, and keeps the library under a key of all that decides it.

Each form is a source compiled with the flags of its instructions; only forms that this CPU can run are built, so the
library is not for other machines.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from deeproot.kernels.home import home_folder

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent
_COMPILERS = ("c++", "g++", "clang++")
_COMMON = ("-std=c++20", "-O3", "-fPIC", "-fno-math-errno", "-w")
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprefer-vector-width=512")
_BF16 = (*_AVX512, "-mavx512bf16", "-mavx512vnni")
_AMX = (*_BF16, "-mamx-tile", "-mamx-bf16")
_TIMEOUT_S = 300


class BuildError(RuntimeError):
    """The library cannot be made here. The message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """Instructions that matter here."""

    avx2: bool = False
    avx512: bool = False
    bf16: bool = False
    """AVX-512 bf16, and the products of bytes (VNNI) that CPUs with it have, too."""
    amx: bool = False
    """AMX bf16."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """One source and how it is compiled."""

    source: str
    flags: tuple[str, ...] = ()


def abilities_here() -> Abilities:
    """What this CPU has, as torch sees it."""
    found = torch.cpu.get_capabilities()

    def has(*names: str) -> bool:
        return all(found.get(name, False) for name in names)

    avx512 = has("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "fma3")
    bf16 = avx512 and has("avx512_bf16", "avx512_vnni")
    return Abilities(has("avx2", "fma3"), avx512, bf16, bf16 and has("amx_tile", "amx_bf16"))


def built_library(
    abilities: Abilities, compilers: Iterable[str] = _COMPILERS, folder: Path | None = None
) -> Path:
    """The library for a CPU of these abilities, compiled if it is not there yet, which takes some seconds and is logged.

    compilers: names or paths, the first that exists is used. folder: where libraries are kept; None is `cpu` in
    deeproot's home. Raises BuildError.
    """
    compiler = next((path for path in map(shutil.which, compilers) if path is not None), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler was found ({', '.join(compilers)}): install g++ or clang")
    units = _units(abilities)
    library = (folder or home_folder() / "cpu") / f"{_key(compiler, units)}.so"
    if not library.is_file():
        _build(compiler, units, library)
    return library


def _units(abilities: Abilities) -> list[_Unit]:
    have = [
        f"-DHAVE_{name}"
        for name, there in (
            ("AVX2", abilities.avx2),
            ("AVX512", abilities.avx512),
            ("BF16", abilities.bf16),
            ("AMX", abilities.amx),
        )
        if there
    ]

    def attention(name: str, width: int, *flags: str) -> _Unit:
        return _Unit("attention_simd.cpp", (f"-DFORM=attend_{name}", f"-DWIDTH={width}", *flags))

    units = [_Unit("interface.cpp"), _Unit("attention.cpp"), attention("plain", 4)]
    if abilities.avx2:
        units.append(attention("avx2", 8, *_AVX2))
    if abilities.avx512:
        units.append(attention("avx512", 16, *_AVX512))
    if abilities.bf16:
        sources = ("matmul_avx512.cpp", "matmul_grouped.cpp", "grouped.cpp", "decoder.cpp")
        units += [_Unit(source, _BF16) for source in sources]
    if abilities.amx:
        units += [
            _Unit(f"{name}.cpp", _AMX) for name in ("matmul_amx", "attention_amx", "attention_token_amx")
        ]
    return [_Unit(unit.source, (*_COMMON, *have, *unit.flags)) for unit in units]


def _key(compiler: str, units: list[_Unit]) -> str:
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    stat = Path(compiler).resolve().stat()
    digest.update(repr((units, compiler, stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()[:32]


def _build(compiler: str, units: list[_Unit], library: Path) -> None:
    logger.info("compiling for this CPU (once, some 10 seconds) with %s", compiler)
    started = time.monotonic()
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as name:
            folder = Path(name)
            objects = [folder / f"{i}.o" for i in range(len(units))]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda i: _compile(compiler, units[i], objects[i]), range(len(units))))
            made = folder / library.name
            _call([compiler, "-shared", *map(str, objects), "-o", str(made)])
            # At once and whole: another process may be building the same.
            made.replace(library)
    except OSError as error:
        raise BuildError(f"the library could not be written: {error}") from None
    logger.info("compiled in %.0f s, kept as %s", time.monotonic() - started, library)


def _compile(compiler: str, unit: _Unit, target: Path) -> None:
    _call([compiler, *unit.flags, "-c", str(SOURCES / unit.source), "-o", str(target)])


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"the compiler did not end within {_TIMEOUT_S} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise BuildError(f"the compiler failed ({command[0]}): {lines[0].strip()}")
