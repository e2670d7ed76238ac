"""Flags that users of vLLM and SGLang bring along: same meaning, accepted; not supported, refused in a sentence."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A flag whose only value that works is what deeproot does anyway."""

    names: tuple[str, ...]
    why: str
    """What to do instead; ends the sentence that names the flag."""
    accepted: tuple[str, ...] = ()
    """Values that ask for what is done anyway. Empty: none."""
    takes_value: bool = True


_FLAGS = (
    _Foreign(
        ("--tensor-parallel-size", "--tp-size", "-tp"), "one device is used so far: leave it at 1", ("1",)
    ),
    _Foreign(("--pipeline-parallel-size", "-pp"), "one device is used so far: leave it at 1", ("1",)),
    _Foreign(("--data-parallel-size", "-dp"), "start one server a device instead", ("1",)),
    _Foreign(("--tokenizer", "--tokenizer-path"), "the tokenizer is the one beside the model"),
    _Foreign(
        ("--revision", "--download-dir"), "models are read from disk: download it first and give its path"
    ),
    _Foreign(("--lora-modules",), "LoRA adapters are not supported yet: merge them into the model"),
    _Foreign(("--cpu-offload-gb", "--swap-space"), "K and V stay on one device", ("0",)),
    _Foreign(("--max-total-tokens",), "give the cache's size with --kv-cache-memory-bytes"),
    _Foreign(("--async-scheduling",), "write --overlap on", (), False),
    _Foreign(("--no-async-scheduling", "--disable-overlap-schedule"), "write --overlap off", (), False),
    _Foreign(("--enable-lora",), "LoRA adapters are not supported yet: merge them into the model", (), False),
    _Foreign(("--trust-remote-code",), "no code of a model's is ever run", (), False),
    _Foreign(
        ("--no-enable-prefix-caching", "--disable-radix-cache"), "prefixes are always reused", (), False
    ),
    _Foreign(("--no-enable-chunked-prefill",), "long prompts are always computed in chunks", (), False),
)
_ALWAYS_ON = (
    "--enable-prefix-caching",
    "--enable-chunked-prefill",
    "--enable-auto-tool-choice",
    "--enable-prompt-tokens-details",
)
"""What deeproot does anyway."""


class _Refuse(argparse.Action):
    """Ends the command with a sentence, unless the value asks for what is done anyway."""

    def __init__(self, *args: Any, foreign: _Foreign, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._foreign = foreign

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if isinstance(values, str) and values in self._foreign.accepted:
            return
        self._refuse(parser, option_string, f" {values}" if isinstance(values, str) else "")

    def _refuse(self, parser: argparse.ArgumentParser, option: str | None, value: str) -> NoReturn:
        parser.error(f"{option}{value} is not supported: {self._foreign.why}")
        raise AssertionError("error() does not return")


def add_foreign_flags(command: argparse.ArgumentParser) -> None:
    """Let `command` know the flags; they stay out of its help."""
    for foreign in _FLAGS:
        command.add_argument(
            *foreign.names,
            action=_Refuse,
            foreign=foreign,
            nargs=None if foreign.takes_value else 0,
            dest=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )
    for name in _ALWAYS_ON:
        command.add_argument(name, action="store_true", dest=argparse.SUPPRESS, help=argparse.SUPPRESS)
