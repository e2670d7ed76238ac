"""What a model's files say: end tokens, templates, sampling, length, from GGUF and from folders."""

import json
from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.chat.assets import GenerationDefaults, ModelAssets, from_gguf_metadata
from deeproot.runtime.chat.errors import ModelFilesError, TemplateError

from .conftest import write_byte_level_folder

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SPECIAL = ["<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|other|>"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_byte_level_folder(
        tmp_path / "Tiny-Chat", SPECIAL, eos_token="<|im_end|>", chat_template=CHATML
    )


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder, "tokenizer_config.json", {k: v for k, v in {**config, **changes}.items() if v is not None})


def test_the_real_model(smollm2_path: Path) -> None:
    assets = ModelAssets.load(smollm2_path)
    assert assets.name == "SmolLM2-135M-Instruct.Q4_1"
    assert assets.context_length == 8192
    assert assets.end_token_ids == {0, 2}  # <|endoftext|>, <|im_end|>
    assert assets.generation == GenerationDefaults()
    prompt = assets.chat_template().render([{"role": "user", "content": "Hi"}])
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_gguf_keys(small_bpe: dict[str, Any]) -> None:
    end = small_bpe["tokenizer.ggml.eos_token_id"]
    metadata = {
        **small_bpe,
        "general.architecture": "qwen2",
        "qwen2.context_length": 4096,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.chat_template": "a",
        "tokenizer.chat_template.tool_use": "b",
        "general.sampling.temp": 0.7,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.8,
        "general.sampling.min_p": 0.05,
    }
    assets = from_gguf_metadata(metadata, "m")
    assert assets.chat_templates == {"default": "a", "tool_use": "b"}
    assert assets.end_token_ids == {end, 5}
    assert assets.context_length == 4096
    assert assets.generation == GenerationDefaults(temperature=0.7, top_k=20, top_p=0.8, min_p=0.05)


def test_a_file_that_says_nothing(small_bpe: dict[str, Any]) -> None:
    assets = from_gguf_metadata({k: v for k, v in small_bpe.items() if "token_id" not in k}, "base")
    assert (assets.end_token_ids, assets.context_length, assets.chat_templates) == (frozenset(), None, {})
    with pytest.raises(TemplateError, match=r"base has no chat template.*--chat-template"):
        assets.chat_template()
    assert assets.chat_template("{{ messages[0].content }}").render([{"role": "user", "content": "x"}]) == "x"


@pytest.mark.parametrize("declared", [7, [7, 9]])
def test_end_tokens_of_a_folder(folder: Path, declared: Any) -> None:
    write(folder, "generation_config.json", {"eos_token_id": declared})
    write(folder, "config.json", {"eos_token_id": 11})
    assets = ModelAssets.load(folder)
    names = {
        assets.tokenizer.id_of(t) for t in ("<|im_end|>", "</s>", "<|endoftext|>")
    }  # <|eot_id|> is no turn's end
    assert assets.end_token_ids == {7, 11} | names | (set(declared) if isinstance(declared, list) else set())


def test_generation_defaults_of_a_folder(folder: Path) -> None:
    assert ModelAssets.load(folder).generation == GenerationDefaults()
    values = {
        "temperature": 0.6,
        "top_k": -1,
        "top_p": 0.95,
        "min_p": 0,
        "repetition_penalty": 1.1,
        "max_new_tokens": 99,
    }
    write(folder, "generation_config.json", {**values, "do_sample": True, "transformers_version": "5"})
    assert ModelAssets.load(folder).generation == GenerationDefaults(**{**values, "top_k": 0})
    write(folder, "generation_config.json", {**values, "do_sample": False})
    assert ModelAssets.load(folder).generation.temperature == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"temperature": "hot"}, "temperature 'hot' is not a number"),
        ({"temperature": True}, "temperature True is not a number"),
        ({"temperature": -1}, "temperature -1 is out of range"),
        ({"top_p": 1.5}, "top_p 1.5 is out of range"),
        ({"eos_token_id": "</s>"}, "eos_token_id '</s>' is neither"),
    ],
)
def test_nonsense_in_generation_config_is_named(folder: Path, content: Any, words: str) -> None:
    write(folder, "generation_config.json", content)
    with pytest.raises(ModelFilesError, match=words) as caught:
        ModelAssets.load(folder)
    assert "generation_config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({}, None),
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 1, "text_config": {"max_position_embeddings": 131072}}, 131072),
    ],
)
def test_context_length_of_a_folder(folder: Path, config: Any, length: int | None) -> None:
    write(folder, "config.json", config)
    assert ModelAssets.load(folder).context_length == length


def test_places_of_chat_templates(folder: Path) -> None:
    assert ModelAssets.load(folder).name == "Tiny-Chat"
    assert ModelAssets.load(folder).chat_templates == {"default": CHATML}
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    change_config(folder, chat_template=named)
    assert ModelAssets.load(folder).chat_templates == {"default": "a", "tool_use": "b"}
    write(folder, "chat_template.jinja", "c")
    write(folder, "additional_chat_templates/rag.jinja", "d")
    assert ModelAssets.load(folder).chat_templates == {"default": "c", "tool_use": "b", "rag": "d"}
    change_config(folder, chat_template=[{"name": "default"}])
    with pytest.raises(ModelFilesError, match=r"chat_template\[0\] has no name or no template"):
        ModelAssets.load(folder)


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere: no such file or folder; give a \.gguf file"):
        ModelAssets.load(tmp_path / "nowhere")
