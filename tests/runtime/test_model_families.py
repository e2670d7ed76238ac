"""Families with windows, caps and scales of their own through the whole stack, against transformers."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.engine.hf import hf_greedy, tiny_model
from tests.runtime.tiny_model import write_tiny_model

from deeproot.runtime.llm import LLM
from deeproot.runtime.sampling_options import SamplingOptions

FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 21},
    "gemma2": {
        "head_dim": 16,
        "query_pre_attn_scalar": 5,
        "sliding_window": 21,
        "attn_logit_softcapping": 1.5,
        "tie_word_embeddings": True,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_generates_what_transformers_does(tmp_path: Path, family: str) -> None:
    """Prompts in chunks of 16 tokens, the second of them from the cache of the first."""
    write_tiny_model(tmp_path)
    model = tiny_model(tmp_path, family, vocab_size=258, **FAMILIES[family])
    first = "A window that is shorter than the prompt, and a prompt that is longer than a chunk."
    options: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "page_size": 16,
        "kv_cache_memory_bytes": 2**22,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
    }
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    with LLM(tmp_path, **options) as llm:
        for prompt in (first, first + " And another."):
            [found] = llm.generate(prompt, SamplingOptions(temperature=0.0, max_tokens=24, ignore_eos=True))
            ids = tokenizer.encode(prompt).ids
            assert list(found.token_ids) == hf_greedy(model, ids, 24)
    assert found.usage.cached >= len(first)
