"""A YAML file with the names of the flags, read before the command line, which has the last word."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deeproot.runtime.options import SetupError


def expand_config(argv: Sequence[str], command: argparse.ArgumentParser) -> list[str]:
    """Replace `--config FILE` by the flags that the file stands for, placed before all others.

    Raises SetupError that names the file and the entry.
    """
    path, others = _take_config(argv)
    return list(argv) if path is None else [*_flags_of(path, command), *others]


def _take_config(argv: Sequence[str]) -> tuple[Path | None, list[str]]:
    path: Path | None = None
    others: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--config":
            value = next(words, None)
            if value is None:
                raise SetupError("--config needs a file")
            path = Path(value)
        elif word.startswith("--config="):
            path = Path(word.removeprefix("--config="))
        else:
            others.append(word)
    return path, others


def _flags_of(path: Path, command: argparse.ArgumentParser) -> list[str]:
    known = {name for action in command._actions for name in action.option_strings}
    flags: list[str] = []
    for key, value in _read(path).items():
        flag = "--" + str(key).replace("_", "-")
        if flag not in known or flag == "--config":
            raise SetupError(f"--config {path}: {key!r} is no flag of this command (see --help)")
        flags += _words(path, flag, value)
    return flags


def _words(path: Path, flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, list):
        if not value or not all(isinstance(item, str | int | float) for item in value):
            raise SetupError(f"--config {path}: {flag[2:]} must be a value or a list of values")
        return [flag, *map(str, value)]
    if isinstance(value, str | int | float):
        return [f"{flag}={value}"]
    raise SetupError(f"--config {path}: {flag[2:]} must be a value or a list of values")


def _read(path: Path) -> Mapping[Any, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"--config {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).replace("\n", " ")
        raise SetupError(f"--config {path} is not YAML: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SetupError(f"--config {path} must hold names of flags and their values, one a line")
    return content
