"""The real small model against transformers, which reads and dequantises the same GGUF file by its own code."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.batches import Chunk, make_batch
from tests.engine.hf import relative_error
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaForCausalLM

from deeproot.engine.config_gguf import config_from_gguf
from deeproot.engine.gguf import GGUFFile
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.loading import load_model, make_attention
from deeproot.engine.runner import Runner

NUM_TOKENS = 64
PAGE_SIZE = 64
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n: int) -> int:\n    ",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "Water boils at 100 degrees Celsius at sea level because",
    "1, 1, 2, 3, 5, 8, 13,",
    "SELECT name, COUNT(*) FROM orders",
    "今天天气很好，我们",
    "La Révolution française commença en",
    "# Installation\n\n```bash\npip install",
    "Q: Why is the sky blue?\nA:",
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer",
    "Error: connection refused (os error 111)\n\nCaused by:",
    CHAT.format("What is 17 times 3?"),
    CHAT.format("Write a haiku about roots."),
    CHAT.format("List three uses of a radix tree."),
    CHAT.format("Translate to German: good morning"),
    "<|im_start|>system\nYou answer in one word.<|im_end|>\n" + CHAT.format("The opposite of hot?"),
    "\n".join(f"Item {i}: {'x' * (i % 7)} costs {i * 3} euros." for i in range(8)) + "\nThe dearest item is",
    "All happy families are alike; every unhappy family is unhappy in its own way. " * 6 + "Everything was",
]


@dataclass(frozen=True)
class Reference:
    prompts: list[list[int]]
    outputs: list[list[int]]
    """`NUM_TOKENS` greedy tokens a prompt."""
    top_two: np.ndarray
    """`[prompts, NUM_TOKENS, 2]` the greatest logits of each step."""
    weights: dict[str, torch.Tensor]
    logits: torch.Tensor
    """Of every position of the last prompt."""


def _load(path: Path) -> LlamaForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    assert isinstance(model, LlamaForCausalLM)
    return model


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Reference:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    model = _load(smollm2_path)
    model.generation_config.eos_token_id = None
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    with torch.inference_mode():
        result = model.generate(
            **padded,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logits = model(torch.tensor([prompts[-1]])).logits[0]
    outputs = result.sequences[:, -NUM_TOKENS:].tolist()
    top_two = torch.stack([step.topk(2).values for step in result.logits], 1).numpy()
    return Reference(prompts, outputs, top_two, model.state_dict(), logits)


@pytest.fixture(scope="module")
def runner(smollm2_path: Path) -> Runner:
    loaded = load_model(smollm2_path, dtype="float32")
    pool = KVPool(loaded.config.kv_layout(PAGE_SIZE, loaded.dtype), 120)
    return Runner(loaded.model, pool, make_attention(loaded.config, pool))


def _generate(runner: Runner, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of all prompts, in one batch from the first step on."""
    pages = [runner.pool.alloc(-(-(len(ids) + NUM_TOKENS) // PAGE_SIZE)) for ids in prompts]
    sequences, cached = [list(ids) for ids in prompts], [0] * len(prompts)
    for _ in range(NUM_TOKENS):
        chunks = [Chunk(ids, n, own.tolist()) for ids, n, own in zip(sequences, cached, pages, strict=True)]
        cached = [len(ids) for ids in sequences]
        for ids, token in zip(sequences, runner.forward(make_batch(chunks, PAGE_SIZE)), strict=True):
            ids.append(int(token))
    for own in pages:
        runner.pool.free(own)
    return [ids[-NUM_TOKENS:] for ids in sequences]


def test_greedy_equals_transformers(reference: Reference, runner: Runner) -> None:
    outputs = _generate(runner, reference.prompts)
    for text, mine, theirs, top_two in zip(
        PROMPTS, outputs, reference.outputs, reference.top_two, strict=True
    ):
        differing = [i for i in range(NUM_TOKENS) if mine[i] != theirs[i]]
        if differing:
            best, second = top_two[differing[0]]
            assert best - second < 1e-3, f"{text!r} differs from token {differing[0]} on"


def test_logits_equal_transformers(reference: Reference, runner: Runner) -> None:
    ids = reference.prompts[-1]
    pages = runner.pool.alloc(-(-len(ids) // PAGE_SIZE))
    chunk = Chunk(ids, 0, pages.tolist(), all_logits=True)
    logits = runner.logits(make_batch([chunk], PAGE_SIZE))
    runner.pool.free(pages)
    assert relative_error(logits, reference.logits) < 1e-4


def test_weights_equal_transformers(reference: Reference, runner: Runner) -> None:
    """Bit by bit: dequantisation, and the order of the rows of Q and K."""
    config = runner.model.config
    for index, layer in enumerate(runner.model.layers):
        prefix = f"model.layers.{index}."
        sizes = [n * config.head_dim for n in (config.num_qo_heads, config.num_kv_heads, config.num_kv_heads)]
        for name, part in zip("qkv", layer.attention.qkv.weight.split(sizes), strict=True):
            assert torch.equal(part, reference.weights[f"{prefix}self_attn.{name}_proj.weight"])
        for name, part in zip(("gate", "up"), layer.mlp.gate_up.weight.chunk(2), strict=True):
            assert torch.equal(part, reference.weights[f"{prefix}mlp.{name}_proj.weight"])


def test_config_from_gguf(smollm2_path: Path) -> None:
    """As the model's own `config.json` on the Hugging Face hub says."""
    with GGUFFile(smollm2_path) as file:
        config = config_from_gguf(file)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (49152, 576, 1536)
    assert (config.num_layers, config.num_qo_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.max_position_embeddings, config.rope.theta) == (8192, 100000.0)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.tie_word_embeddings
    assert not config.qkv_bias


def test_bfloat16_answers_sensibly(smollm2_path: Path, reference: Reference) -> None:
    """bfloat16 weights, activations and cache: the same first tokens for most prompts."""
    loaded = load_model(smollm2_path, dtype="bfloat16")
    pool = KVPool(loaded.config.kv_layout(PAGE_SIZE, loaded.dtype), 120)
    runner = Runner(loaded.model, pool, make_attention(loaded.config, pool))
    pages = [pool.alloc(-(-len(ids) // PAGE_SIZE)) for ids in reference.prompts]
    chunks = [Chunk(ids, 0, own.tolist()) for ids, own in zip(reference.prompts, pages, strict=True)]
    tokens = runner.forward(make_batch(chunks, PAGE_SIZE)).tolist()
    clear = reference.top_two[:, 0, 0] - reference.top_two[:, 0, 1] > 1.0
    assert clear.sum() >= 8
    for i in np.flatnonzero(clear):
        assert tokens[i] == reference.outputs[i][0], PROMPTS[i]
