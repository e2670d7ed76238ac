"""Texts and cuts for property tests."""

from hypothesis import strategies as st

FRAGMENTS = [
    "the quick brown fox",
    " Hello",
    "world",
    "zebra",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "        return x\n",
    "def f(a, b):\n    ",
    "foo(",
    ")",
    "12",
    "34",
    "3.14159",
    "1,000,000",
    "½",
    "٣٤",
    "don't",
    "I'LL",
    "it’s",
    "café",
    "e\u0301",
    "Straße",
    "東京",
    "、",
    "한국어",
    "Привет",
    "😀",
    "👩‍👩‍👧",
    "🇨🇭",
    "\u00a0",
    "\u200b",
    "\u3000",
    "\ufeff",
    "\x00",
    "=>",
    "!==",
    "https://example.org/a?b=c&d=%20",
    "<b>",
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<|",
    "|>",
    "</s>",
    "<0x0A>",
    "▁",
    "Ġ",
]

texts = st.lists(
    st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=8), st.characters(codec="utf-8")), max_size=25
).map("".join)


def cuts(text: str) -> st.SearchStrategy[list[str]]:
    """Ways of cutting a text into pieces, empty ones included."""
    return st.lists(st.integers(0, len(text)), max_size=12).map(
        lambda at: [text[a:b] for a, b in zip([0, *sorted(at)], [*sorted(at), len(text)], strict=True)]
    )
