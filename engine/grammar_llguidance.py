"""Grammars by llguidance. It lets go of Python's lock while it works, and spreads a batch over its own threads."""

from collections.abc import Sequence
from typing import Any

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from deeproot.engine.batch import Int32Array
from deeproot.engine.grammar import GrammarError, TokenBytes

NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""First line of every grammar: where one text only can follow, allow all ways of cutting it into tokens. Otherwise the
library asks for the tokenizer, of which the engine knows nothing but its tokens' bytes."""

_SILENT = 0


class LLGuidanceBackend:
    """See `GrammarBackend`."""

    def __init__(self, tokens: TokenBytes, vocab_size: int, num_threads: int = 1) -> None:
        """`vocab_size`: width of the logits, which may be more or fewer than there are pieces. `num_threads`: for
        the masks of a batch."""
        self.vocab_size = vocab_size
        self._tokenizer = _tokenizer(tokens, vocab_size)
        self._executor = LLExecutor(num_threads)
        self._limits = parser_limits()

    def compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=_SILENT, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(first_line(matcher.get_error()))
        return matcher

    def fork(self, matcher: LLMatcher) -> LLMatcher:
        return matcher.deep_copy()

    def accept(self, matchers: Sequence[LLMatcher], token_ids: Sequence[int]) -> None:
        self._executor.consume_token_par(list(zip(matchers, token_ids, strict=True)))

    def fill(self, matchers: Sequence[LLMatcher], masks: Int32Array) -> None:
        places = [(matcher, i) for i, matcher in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, places, masks)

    def error(self, matcher: LLMatcher) -> str | None:
        return first_line(matcher.get_error()) if matcher.is_error() else None


def parser_limits() -> LLParserLimits:
    """Bounds on what one grammar may cost: about 20 ms to start and 10 ms a token on one core, and some 100 MB."""
    return LLParserLimits(max_lexer_states=50_000, step_max_items=50_000, verbose_errors=False)


def first_line(error: str) -> str:
    """The library's message without the excerpt of the grammar that follows it."""
    lines = [line.strip() for line in error.splitlines()]
    return next((line for line in lines if line and line != "<non-verbose/>"), "unknown error")


class _Tokens:
    """A vocabulary in the form that the library reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: TokenBytes, vocab_size: int) -> None:
        pieces = list(tokens.pieces[:vocab_size])
        self.tokens = pieces + [b""] * (vocab_size - len(pieces))
        self.special_token_ids = sorted(i for i in tokens.special_ids | tokens.end_ids if i < vocab_size)
        self.eos_token_id = min(tokens.end_ids, default=0)

    def __call__(self, text: bytes) -> list[int]:
        raise GrammarError(f"no grammar asks for the tokens of a text, but one did for {text!r}")


def _tokenizer(tokens: TokenBytes, vocab_size: int) -> LLTokenizer:
    ends = sorted(i for i in tokens.end_ids if i < vocab_size)
    if not ends:
        raise GrammarError("the model has no token that ends an output")
    # Its annotations name text and transformers tokenizers; it takes any object that says is_tokenizer_wrapper.
    wrapper: Any = _Tokens(tokens, vocab_size)
    return LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=ends)
