"""Compiles a launch for sm_90 without a GPU and keeps what its machine code says, under a key of all that decides it."""

import hashlib
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton._utils import find_paths_if, get_iterable_path
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from deeproot.kernels.check import sass
from deeproot.kernels.launch import Launch

TARGET = GPUTarget("cuda", 90, 32)
_BIN = Path(nvidia.__path__[0]) / "bin"


def specialise(launch: Launch) -> tuple[ASTSource, dict[str, Any]]:
    """The source and options that a launch of these arguments would compile on an H100.

    Which pointers and numbers are divisible by 16, equal to 1 or constant is decided by Triton's own binder.
    """
    kernel = launch.kernel
    backend = make_backend(TARGET)
    options = {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "enable_fp_fusion": True,
        "debug": False,
    }
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialisation, _ = bind(**launch.args, **options)
    names = [param.name for param in kernel.params]
    types = [one[0] for one in specialisation]
    values = list(bound.values())
    constants = {
        path: get_iterable_path(values, path) for path in find_paths_if(types, lambda _, t: t == "constexpr")
    }
    hints = ["" if one[0] == "constexpr" else one[1] for one in specialisation]
    attributes = {
        path: backend.parse_attr(get_iterable_path(hints, path))
        for path in find_paths_if(hints, lambda _, hint: isinstance(hint, str))
    }
    signature = dict(zip(names, types, strict=True))
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return source, dict(backend.parse_options(options).__dict__)


def _sources(kernel: JITFunction, seen: dict[str, str]) -> dict[str, str]:
    """The texts of a kernel, of the device functions it calls and of the constants it names."""
    if kernel.__name__ in seen:
        return seen
    seen[kernel.__name__] = kernel.src
    spaces = kernel.fn.__globals__
    for name in sorted(kernel.fn.__code__.co_names):
        value = spaces.get(name)
        if isinstance(value, JITFunction) and value.__module__.startswith("deeproot."):
            _sources(value, seen)
        elif isinstance(value, (int, float, str, triton.language.constexpr)):
            seen[f"{kernel.__name__}.{name}"] = repr(value)
    return seen


def key(launch: Launch) -> str:
    """A hash of all that decides the outcome: sources, specialisation, options, Triton's version and this reader."""
    source, options = specialise(launch)
    reader = (Path(sass.__file__).read_text(), Path(__file__).read_text())
    parts = (
        triton.__version__,
        sorted(_sources(launch.kernel, {}).items()),
        sorted((name, str(kind)) for name, kind in source.signature.items()),
        sorted((str(path), repr(value)) for path, value in source.constants.items()),
        sorted((str(path), repr(value)) for path, value in source.attrs.items()),
        sorted((name, repr(value)) for name, value in options.items()),
        reader,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def measure(launch: Launch) -> dict[str, Any]:
    """Compile, and read registers, memory, instructions and matrix loops from the binary."""
    source, options = specialise(launch)
    compiled = triton.compile(source, target=TARGET, options=options)
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(compiled.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", str(binary))
        listing = _tool("nvdisasm", "-c", str(binary))
    program = sass.parse(listing)
    return {
        "registers": _resource(usage, "REG"),
        "stack": _resource(usage, "STACK"),
        "shared": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
        "code": sass.count(program.code),
        "loops": [sass.count(loop) for loop in sass.loops(program)],
    }


def path_of(launch: Launch, cache: Path) -> Path:
    """Where the cache keeps what `measure` says of a launch."""
    return cache / str(triton.__version__) / f"{key(launch)}.json"


def measured(launch: Launch, cache: Path) -> tuple[dict[str, Any], bool]:
    """What `measure` says of a launch, and whether it had to be compiled for that."""
    path = path_of(launch, cache)
    if path.is_file():
        return json.loads(path.read_text()), False
    facts = measure(launch)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{hashlib.sha256(repr(facts).encode()).hexdigest()[:8]}.tmp")
    partial.write_text(json.dumps(facts))
    partial.replace(path)
    return facts, True


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run([str(_BIN / name), *arguments], capture_output=True, text=True, check=True).stdout


def _resource(usage: str, name: str) -> int:
    match = re.search(rf"\b{name}:(\d+)", usage)
    if match is None:
        raise ValueError(f"cuobjdump's resource usage names no {name}: {usage[:200]!r}")
    return int(match[1])
