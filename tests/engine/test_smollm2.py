"""The real small model against transformers, which reads and dequantises the same GGUF file by its own code."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import pytest
import torch
from tests.engine.gguf_samples import write
from tests.engine.hf import hf_logits, relative_error
from tests.engine.sequences import run_greedy, run_in_steps
from transformers import AutoModelForCausalLM, GgufConfig, LlamaForCausalLM

from deeproot.engine.config_gguf import config_from_gguf
from deeproot.engine.gguf import GGUFFile
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.loading import load_model, make_attention
from deeproot.engine.models.llama import LlamaForCausalLM as Llama
from deeproot.engine.runner import Runner
from deeproot.runtime.chat.tokenizer import Tokenizer

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
class Run:
    """What both sides make of the prompts."""

    runner: Runner
    prompts: list[list[int]]
    outputs: list[list[int]]
    """Ours: `NUM_TOKENS` greedy tokens a prompt."""
    reference: LlamaForCausalLM
    logits: list[torch.Tensor]
    """Theirs: `[NUM_TOKENS, vocab_size]` a prompt, each row after the prompt and the rows' tokens of `outputs`."""


def _load_reference(path: Path, folder: Path) -> LlamaForCausalLM:
    """By transformers' own loader, from a copy without the vocabulary, which takes it very long to read."""
    reader = gguf.GGUFReader(path)

    def fill(writer: gguf.GGUFWriter) -> None:
        for key, field in reader.fields.items():
            if key.startswith("llama."):
                writer.add_key_value(key, field.contents(), field.types[0])
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)

    write(folder / "weights.gguf", fill)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file="weights.gguf",
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    assert isinstance(model, LlamaForCausalLM)
    return model


@pytest.fixture(scope="module")
def run(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    with GGUFFile(smollm2_path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    prompts = [tokenizer.encode(text, parse_special=True).tolist() for text in PROMPTS]
    loaded = load_model(smollm2_path, dtype="float32")
    pool = KVPool(loaded.config.kv_layout(PAGE_SIZE, loaded.dtype), 120)
    runner = Runner(loaded.model, pool, make_attention(loaded.config, pool))
    outputs = run_greedy(runner, prompts, NUM_TOKENS)
    reference = _load_reference(smollm2_path, tmp_path_factory.mktemp("reference"))
    logits = []
    with torch.inference_mode():
        for ids, output in zip(prompts, outputs, strict=True):
            whole = torch.tensor([ids + output[:-1]])
            logits.append(reference(whole, logits_to_keep=NUM_TOKENS, use_cache=False).logits[0])
    return Run(runner, prompts, outputs, reference, logits)


def test_greedy_equals_transformers(run: Run) -> None:
    """Tokens that are theirs one by one, each after the same ones before, are what they would have generated."""
    for text, output, logits in zip(PROMPTS, run.outputs, run.logits, strict=True):
        differing = (logits.argmax(-1) != torch.tensor(output)).nonzero()
        if len(differing):
            step = int(differing[0])
            best, second = logits[step].topk(2).values
            assert best - second < 1e-3, f"{text!r} differs from token {step} on"


def test_logits_equal_transformers(run: Run) -> None:
    ids = run.prompts[-1]
    pages = run.runner.pool.alloc(-(-len(ids) // PAGE_SIZE))
    logits = run_in_steps(run.runner, ids, pages.tolist(), [len(ids)])
    run.runner.pool.free(pages)
    assert relative_error(logits, hf_logits(run.reference, ids)) < 1e-4


def test_weights_equal_transformers(run: Run) -> None:
    """Bit by bit: dequantisation, and the order of the rows of Q and K."""
    model = run.runner.model
    assert isinstance(model, Llama)
    config, weights = model.config, run.reference.state_dict()
    for index, layer in enumerate(model.layers):
        prefix = f"model.layers.{index}."
        sizes = [n * config.head_dim for n in (config.num_qo_heads, config.num_kv_heads, config.num_kv_heads)]
        for name, part in zip("qkv", layer.attention.qkv.weight.split(sizes), strict=True):
            assert torch.equal(part, weights[f"{prefix}self_attn.{name}_proj.weight"])
        for name, part in zip(("gate", "up"), layer.mlp.gate_up.weight.chunk(2), strict=True):
            assert torch.equal(part, weights[f"{prefix}mlp.{name}_proj.weight"])


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


def test_bfloat16_answers_sensibly(smollm2_path: Path, run: Run) -> None:
    """bfloat16 weights, activations and cache: the same first tokens where the choice is clear."""
    loaded = load_model(smollm2_path, dtype="bfloat16")
    pool = KVPool(loaded.config.kv_layout(PAGE_SIZE, loaded.dtype), 120)
    runner = Runner(loaded.model, pool, make_attention(loaded.config, pool))
    tokens = [token for [token] in run_greedy(runner, run.prompts, 1)]
    first = torch.stack([logits[0] for logits in run.logits])
    best, second = first.topk(2).values.T
    clear = (best - second > 1.0).nonzero().ravel().tolist()
    assert len(clear) >= 8
    for i in clear:
        assert tokens[i] == first[i].argmax(), PROMPTS[i]
