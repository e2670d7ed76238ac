"""Text to token ids and back, without torch or transformers."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from deeproot.runtime.chat.folder_vocabulary import folder_vocabulary
from deeproot.runtime.chat.gguf_vocabulary import gguf_vocabulary
from deeproot.runtime.chat.vocabulary import Added, Vocabulary

Int32Array = NDArray[np.int32]
Encoder = Callable[[str], Int32Array]
"""Text to `[num_tokens]` ids."""


class Tokenizer:
    """A model's vocabulary. Immutable; encoding and decoding may run in several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._backend = vocabulary.backend
        self.pieces = vocabulary.pieces
        self.added = vocabulary.added
        self.special_ids = frozenset(entry.token_id for entry in vocabulary.added if entry.special)
        """Ids of the control tokens."""
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.add_bos = vocabulary.add_bos and vocabulary.bos_id is not None
        """Whether a plain prompt starts with `bos_id`; `encode` leaves that to the caller."""
        self.drop_leading_space = vocabulary.drop_leading_space
        plain = [(entry.text, entry) for entry in vocabulary.added if not entry.special]
        self._encode_plain = self.encoder(plain)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """From a GGUF file's metadata; ModelFilesError if that has no usable vocabulary."""
        return cls(gguf_vocabulary(metadata))

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """From a Hugging Face folder with a tokenizer.json; ModelFilesError if that is missing or damaged."""
        return cls(folder_vocabulary(folder))

    @property
    def vocab_size(self) -> int:
        """Largest id plus one. A model may have more rows than that."""
        return len(self.pieces)

    @property
    def special_texts(self) -> dict[str, str]:
        """The tokens that chat templates know by name (`bos_token` and so on), those that exist."""
        vocabulary = self._vocabulary
        named = {
            "bos_token": vocabulary.bos_id,
            "eos_token": vocabulary.eos_id,
            "unk_token": vocabulary.unk_id,
            "pad_token": vocabulary.pad_id,
        }
        return {name: self.text_of(token_id) for name, token_id in named.items() if token_id is not None}

    def id_of(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary, or None."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def text_of(self, token_id: int) -> str:
        """The spelling of a token in the vocabulary; an empty string for an id that no token has."""
        return self._backend.id_to_token(token_id) or ""

    def encode(self, text: str, *, parse_special: bool) -> Int32Array:
        """`[num_tokens]` ids of `text`, with nothing put before or after.

        With `parse_special`, text that spells a control token becomes that token; without, it stays text. Added
        tokens that are not special (runs of spaces, say) are found either way. Lone surrogates become U+FFFD.
        """
        return _ids(self._backend, text) if parse_special else self._encode_plain(text)

    def encode_prompt(self, text: str) -> Int32Array:
        """`[num_tokens]` ids of a plain prompt, as the model expects it: with the beginning token if it wants one.

        Control tokens spelt in `text` are control tokens: who writes a raw prompt writes the model's format.
        """
        ids = self.encode(text, parse_special=True)
        if not self.add_bos or self.bos_id is None or (ids.size and ids[0] == self.bos_id):
            return ids
        return np.concatenate([np.array([self.bos_id], np.int32), ids])

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`. Invalid UTF-8 becomes U+FFFD; ids that no token has add nothing."""
        pieces, size, skip = (
            self.pieces,
            len(self.pieces),
            self.special_ids if skip_special_tokens else frozenset(),
        )
        data = b"".join([pieces[i] for i in map(int, ids) if 0 <= i < size and i not in skip])
        if self.drop_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def encoder(self, spellings: Iterable[tuple[str, Added]]) -> Encoder:
        """An encoder that shares this vocabulary but finds just the given added tokens, by the given spellings."""
        chosen = list(spellings)
        base = self._backend
        backend = Backend(base.model)
        if base.normalizer is not None:
            backend.normalizer = base.normalizer
        if base.pre_tokenizer is not None:
            backend.pre_tokenizer = base.pre_tokenizer
        backend.add_tokens([_respelt(entry.token, spelling) for spelling, entry in chosen])
        # The library numbers tokens that the model lacks as it likes.
        own_ids = np.arange(max(self.vocab_size, base.get_vocab_size()) + len(chosen), dtype=np.int32)
        for spelling, entry in chosen:
            own_ids[backend.token_to_id(spelling)] = entry.token_id
        return lambda text: own_ids[_ids(backend, text)]


def _respelt(token: AddedToken, spelling: str) -> AddedToken:
    return AddedToken(
        spelling,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized and spelling == token.content,
        special=token.special,
    )


def _ids(backend: Backend, text: str) -> Int32Array:
    try:
        found = backend.encode(text, add_special_tokens=False).ids
    except (UnicodeEncodeError, TypeError):
        # Python strings may hold lone surrogates, which no UTF-8 can; pairs of them are one character.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        found = backend.encode(text, add_special_tokens=False).ids
    return np.array(found, dtype=np.int32)
