"""Logarithms of probabilities as OpenAI's two surfaces write them."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.runtime.chat.detokenizer import Detokenizer
from deeproot.runtime.chat.tokenizer import Int32Array, Tokenizer
from deeproot.runtime.server.responses import (
    ChatLogprobs,
    TextLogprobs,
    TokenLogprob,
    TopLogprob,
)
from deeproot.scheduler.messages import TokenLogprobs


def chat_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> ChatLogprobs:
    """The form of chat completions. `bytes` is what a token adds, also where that is a part of a character."""

    def spelt(token_id: int) -> tuple[str, list[int]]:
        piece = piece_of(token_id, tokenizer)
        return piece.decode("utf-8", "replace"), list(piece)

    def top(token_id: int, logprob: float) -> TopLogprob:
        token, data = spelt(token_id)
        return TopLogprob(token=token, logprob=logprob, bytes=data)

    content = []
    for entry in entries:
        token, data = spelt(entry.token_id)
        tops = [top(*pair) for pair in entry.top]
        content.append(TokenLogprob(token=token, logprob=entry.logprob, bytes=data, top_logprobs=tops))
    return ChatLogprobs(content=content)


def piece_of(token_id: int, tokenizer: Tokenizer) -> bytes:
    """What a token adds to a text; nothing for an id that no token has."""
    return tokenizer.pieces[token_id] if 0 <= token_id < len(tokenizer.pieces) else b""


def token_name(token_id: int, tokenizer: Tokenizer) -> str:
    """A token's text; a part of a character as `bytes:\\xf0`, so that different tokens keep different names."""
    piece = piece_of(token_id, tokenizer)
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


@dataclass(slots=True)
class TextForm:
    """The form of text completions for one choice; keeps count of where in the text its tokens stand."""

    tokenizer: Tokenizer
    detokenizer: Detokenizer
    offset: int = 0
    """Characters before the next token."""

    @classmethod
    def start(cls, tokenizer: Tokenizer, *, with_prompt: bool) -> "TextForm":
        """For a choice whose text begins with its first output token or, `with_prompt`, with its prompt's first."""
        return cls(tokenizer, Detokenizer(tokenizer, continues_text=not with_prompt))

    def first_of_prompt(self, prompt: Int32Array) -> TextLogprobs:
        """The first token of an echoed prompt, of which no probability is known."""
        token_id = int(prompt[0])
        name = token_name(token_id, self.tokenizer)
        return TextLogprobs([name], [None], [None], [self._advance(token_id)])

    def more(self, entries: Sequence[TokenLogprobs]) -> TextLogprobs:
        """The next tokens."""
        return TextLogprobs(
            tokens=[token_name(entry.token_id, self.tokenizer) for entry in entries],
            token_logprobs=[entry.logprob for entry in entries],
            top_logprobs=[self._top(entry) for entry in entries],
            text_offset=[self._advance(entry.token_id) for entry in entries],
        )

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        # The token itself is among them also where it is not one of the likeliest.
        pairs = [*entry.top, (entry.token_id, entry.logprob)]
        named: dict[str, float] = {}
        for token_id, logprob in pairs:
            named.setdefault(token_name(token_id, self.tokenizer), logprob)
        return named

    def _advance(self, token_id: int) -> int:
        start = self.offset
        self.offset += len(self.detokenizer.feed(token_id))
        return start


def joined(parts: Sequence[TextLogprobs]) -> TextLogprobs:
    """Several in a row as one."""
    return TextLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
