"""Tokenizers and templates that the tests of the working set share."""

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import Context, WorkingSet

from .layouts import Assemble
from .template_names import SPECIALS

HERE = Path(__file__).parent
CONTROLS = (
    # Qwen, SmolLM
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|object_ref_start|>", "<|fim_prefix|>"),
    # Llama
    *(
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|python_tag|>",
    ),
    # Mistral
    *("<s>", "</s>", "<unk>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    # Phi, Gemma, DeepSeek
    *("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<start_of_turn>", "<end_of_turn>"),
    *(
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜tool▁calls▁begin｜>",
    ),
)
"""Control tokens of several model families in one vocabulary."""
SHORTHANDS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "    ")
"""Added tokens that are not special: some structure a prompt, one is a run of spaces."""
CORPUS = [
    "foo() bar() call(x) baz()\n\n",
    "def f():\n\n    return 1234\n\n",
    "12(34)1234(1234)5678\n\n",
] * 40


def train_bpe() -> tokenizers.Tokenizer:
    """A byte-level BPE in which `foo(`+`)`, `\\n`+`\\n` and `12`+`34` merge."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    trained.decoder = decoders.ByteLevel()
    trained.add_special_tokens(
        [tokenizers.AddedToken(text, special=True, normalized=False) for text in CONTROLS]
    )
    trained.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in SHORTHANDS])
    return trained


def template_source(name: str) -> str:
    """A template's text: one that a model carries, or a shape of our own."""
    folders = (HERE / "templates", HERE.parent / "chat" / "templates")
    found = next(path for folder in folders if (path := folder / f"{name}.jinja").exists())
    return found.read_text(encoding="utf-8").rstrip("\n")


def smollm2_tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, str]:
    """The tokenizer and chat template in the model's file."""
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    made = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    kinds = fields["tokenizer.ggml.token_type"].contents()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
    made.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in control])
    return made, fields["tokenizer.chat_template"].contents()


@pytest.fixture(scope="session")
def bpe() -> tokenizers.Tokenizer:
    return train_bpe()


@pytest.fixture(scope="session")
def tok(bpe: tokenizers.Tokenizer) -> TokenizersAdapter:
    return TokenizersAdapter(bpe)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> tuple[tokenizers.Tokenizer, str]:
    return smollm2_tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def make_template() -> Callable[[str], ChatTemplate]:
    return lambda name: ChatTemplate(template_source(name), special_texts=SPECIALS)


@pytest.fixture
def log() -> EventLog:
    """In memory; each event one second after the one before."""
    now = iter(range(1_700_000_000, 1_800_000_000))
    return EventLog.memory(clock=lambda: next(now) * 1_000_000_000)


@pytest.fixture(scope="session")
def assemble(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> Assemble:
    segments = SegmentTokenizer(tok)
    template = make_template("qwen2.5-instruct")

    def call(policy: LayoutPolicy, log: EventLog, *, upto: int | None = None) -> Context:
        return WorkingSet(policy=policy, tokenizer=segments, template=template).assemble(log, upto=upto)

    return call
