"""What this package needs of a tokenizer, and an adapter for the `tokenizers` library."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import tokenizers

TokenIds = npt.NDArray[np.int32]


class AddedToken(Protocol):
    """A token that is found in text by its spelling, before any merging."""

    @property
    def text(self) -> str:
        """Its spelling."""

    @property
    def token_id(self) -> int:
        """Its id."""

    @property
    def special(self) -> bool:
        """Whether it is a control token, rather than a mere shorthand that text may contain."""


class Tokenizer(Protocol):
    """Text to ids, without any beginning or end token put around it."""

    @property
    def added(self) -> Sequence[AddedToken]:
        """Every added token, special or not."""

    def encode(self, text: str, *, parse_special: bool) -> TokenIds:
        """`[num_tokens]` ids, int32. With `parse_special` off, text that spells a control token stays text; added
        tokens that are not special may be found either way."""


class TokenizerError(ValueError):
    """The tokenizer cannot be used here. The message says why."""


@dataclass(frozen=True, slots=True)
class NamedToken:
    """An `AddedToken` of the adapter."""

    text: str
    token_id: int
    special: bool


class TokenizersAdapter:
    """A `tokenizers.Tokenizer` as a `Tokenizer`: two copies, one of which knows no control token at all."""

    def __init__(self, source: tokenizers.Tokenizer) -> None:
        description = json.loads(source.to_str())
        added = description["added_tokens"]
        self._added = tuple(
            NamedToken(token["content"], int(token["id"]), bool(token["special"])) for token in added
        )
        for extra in ("post_processor", "truncation", "padding"):
            description[extra] = None
        self._parsing = tokenizers.Tokenizer.from_str(json.dumps(description))
        description["added_tokens"] = []
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(description))
        shorthands = [token for token in added if not token["special"]]
        self._plain.add_tokens(
            [
                tokenizers.AddedToken(
                    token["content"],
                    single_word=token["single_word"],
                    lstrip=token["lstrip"],
                    rstrip=token["rstrip"],
                    normalized=token["normalized"],
                )
                for token in shorthands
            ]
        )
        # The library numbers tokens that the model lacks as it likes.
        size = max(
            source.get_vocab_size(), self._plain.get_vocab_size(), *(t.token_id + 1 for t in self._added), 0
        )
        self._own_ids = np.arange(size + len(added), dtype=np.int32)
        for token in shorthands:
            self._own_ids[self._plain.token_to_id(token["content"])] = token["id"]

    @classmethod
    def from_file(cls, path: str | Path) -> "TokenizersAdapter":
        """Read a `tokenizer.json`. Raises `TokenizerError` if it is none."""
        try:
            source = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # The library raises bare Exception.
            raise TokenizerError(f"{path}: cannot be read as a tokenizer.json ({error})") from None
        return cls(source)

    @property
    def added(self) -> Sequence[NamedToken]:
        return self._added

    def encode(self, text: str, *, parse_special: bool) -> TokenIds:
        if parse_special:
            return np.array(self._parsing.encode(text, add_special_tokens=False).ids, dtype=np.int32)
        found = np.array(self._plain.encode(text, add_special_tokens=False).ids, dtype=np.int32)
        return self._own_ids[found]
