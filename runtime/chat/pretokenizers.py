"""How byte-level vocabularies cut text before merging, by the name that GGUF gives in `tokenizer.ggml.pre`.

A name stands for regular expressions applied one after another: each match, and each gap between matches, becomes
a piece that the next expression cuts further. The expressions are those of the models' own `tokenizer.json`.
"""

from dataclasses import dataclass

from deeproot.runtime.chat.errors import ModelFilesError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SYMBOLS_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_SPACES}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_FALLBACK = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)
_FALCON = (
    r"[\p{P}\$\+<=>\^~\|`]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"[0-9][0-9][0-9]",
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`patterns`: applied in order. `ignore_merges`: a piece that is itself in the vocabulary is one token.
    `add_bos`: whether plain prompts start with the beginning token where the file does not say."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_KINDS: tuple[tuple[PreTokenizer, str], ...] = (
    (PreTokenizer(_FALLBACK), "default"),
    (
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (PreTokenizer((_QWEN2,)), "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan kormo"),
    (PreTokenizer((_QWEN35,)), "qwen35"),
    (
        PreTokenizer((_DIGIT, _GPT2)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b",
    ),
    (PreTokenizer((_GPT2,)), "gpt-2 phi-2 mpt olmo jais exaone4 trillion granite-docling"),
    (PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer((_GPT4O,)), "gpt-4o llama4 kanana2"),
    (PreTokenizer(_DEEPSEEK3), "deepseek-v3 hunyuan-dense"),
    (PreTokenizer(_FALCON), "falcon"),
)
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: kind for kind, names in _KINDS for name in names.split()}
"""Every supported value of `tokenizer.ggml.pre`."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """The cutting rules called `name`; ModelFilesError if they are not known, since any others would give wrong ids."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise ModelFilesError(
            f"tokenizer.ggml.pre: {name!r} is not supported; use the model's Hugging Face folder, whose "
            f"tokenizer.json needs no such name, or a GGUF with one of: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return found
