"""Lets the scheduler run where msgspec is not installed: a machine lent for a check has torch and Triton, no more."""

import importlib.util
import sys
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any


class PlainStruct:
    """What `msgspec.Struct` is to the scheduler's messages: a frozen record. It cannot be sent to another process."""

    def __init_subclass__(cls, frozen: bool = False, kw_only: bool = False, **encoding: object) -> None:
        for name in cls.__annotations__:
            default = cls.__dict__.get(name)
            if isinstance(default, dict | list | set):  # empty, and anew for each record
                setattr(cls, name, field(default_factory=type(default)))
        dataclass(frozen=frozen, kw_only=kw_only)(cls)


def ensure_structs() -> bool:
    """Whether msgspec is there; if not, its place is taken by PlainStruct from now on in this process."""
    if "msgspec" in sys.modules or importlib.util.find_spec("msgspec") is not None:
        return True
    module: Any = ModuleType("msgspec")
    module.Struct = PlainStruct
    module.structs = SimpleNamespace(replace=replace)
    sys.modules["msgspec"] = module
    return False
