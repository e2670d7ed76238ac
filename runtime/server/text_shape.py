"""Text completions as OpenAI writes them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from deeproot.runtime.chat.reply_events import collect
from deeproot.runtime.chat.tokenizer import Int32Array, Tokenizer
from deeproot.runtime.server.job import Piece
from deeproot.runtime.server.logprob_forms import TextForm, joined
from deeproot.runtime.server.responses import TextChoice, TextCompletion, TextLogprobs, UsageInfo
from deeproot.runtime.server.sse import COMPLETIONS_FRAMING


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that its completion begins with."""

    text: str
    token_ids: Int32Array


class TextShape:
    """See `answers.Shape`. Remembers which choices have begun, and how far their texts are."""

    framing = COMPLETIONS_FRAMING

    def __init__(
        self,
        completion_id: str,
        model: str,
        include_usage: bool,
        *,
        tokenizer: Tokenizer | None = None,
        echoes: Sequence[Echo] = (),
    ) -> None:
        """`tokenizer`: to spell the tokens of logarithms; None if none are wanted. `echoes`: one a choice, or none."""
        self._id = completion_id
        self._model = model
        self._created = int(time.time())
        self._usage_of_chunks = None if include_usage else UNSET
        self._tokenizer = tokenizer
        self._echoes = echoes
        self._forms: dict[int, TextForm] = {}
        self._begun: set[int] = set()

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo) -> TextCompletion:
        texts: dict[int, list[str]] = {}
        logprobs: dict[int, list[TextLogprobs]] = {}
        reasons: dict[int, str] = {}
        for piece in pieces:
            text, known = self._news(piece)
            texts.setdefault(piece.index, []).append(text)
            if known is not None:
                logprobs.setdefault(piece.index, []).append(known)
            if piece.end is not None:
                reasons[piece.index] = piece.end.reason
        choices = [
            TextChoice(
                index=i,
                text="".join(texts[i]),
                logprobs=None if self._tokenizer is None else joined(logprobs.get(i, [])),
                finish_reason=reasons[i],
            )
            for i in sorted(texts)
        ]
        return self._body(choices, usage)

    def chunks(self, piece: Piece) -> list[object]:
        text, logprobs = self._news(piece)
        chunks: list[object] = []
        if text or logprobs is not None:
            chunks.append(self._chunk(TextChoice(index=piece.index, text=text, logprobs=logprobs)))
        if piece.end is not None:
            chunks.append(self._chunk(TextChoice(index=piece.index, text="", finish_reason=piece.end.reason)))
        return chunks

    def last_chunks(self, usage: UsageInfo, *, at_least_one: bool) -> list[object]:
        wanted = self._usage_of_chunks is not UNSET
        return [self._body([], usage if wanted else UNSET)] if wanted or at_least_one else []

    def _news(self, piece: Piece) -> tuple[str, TextLogprobs | None]:
        """What a piece adds to its choice's text, and the logarithms of its tokens if there are any."""
        text, parts = collect(piece.events).content, []
        if self._tokenizer is not None and piece.index not in self._forms:
            self._forms[piece.index] = TextForm.start(self._tokenizer, with_prompt=bool(self._echoes))
        form = self._forms.get(piece.index)
        if self._echoes and piece.index not in self._begun:
            self._begun.add(piece.index)
            echo = self._echoes[piece.index]
            text = echo.text + text
            if form is not None:
                parts.append(form.first_of_prompt(echo.token_ids))
        entries = (*piece.prompt_logprobs, *piece.logprobs)
        if form is not None and entries:
            parts.append(form.more(entries))
        return text, joined(parts) if parts else None

    def _chunk(self, choice: TextChoice) -> TextCompletion:
        return self._body([choice], self._usage_of_chunks)

    def _body(self, choices: list[TextChoice], usage: UsageInfo | UnsetType | None) -> TextCompletion:
        return TextCompletion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )
