"""What a model's files say beside its weights: tokenizer, chat template, how to sample, when to end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deeproot.engine.gguf import GGUFFile
from deeproot.engine.grammar import TokenBytes
from deeproot.engine.text_files import read_text
from deeproot.runtime.chat.errors import ModelFilesError, TemplateError
from deeproot.runtime.chat.folder_vocabulary import read_json
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.template_programs import Templates
from deeproot.runtime.chat.tokenizer import Tokenizer

_END_OF_TURN = frozenset(
    [
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|eot|>",
        "<EOT>",
        "[EOT]",
    ]
)
_END_OF_TEXT = frozenset(["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]"])

_MAX_TEMPLATE_BYTES = 2**20
"""The longest known have some 30 kB."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """How the model's makers say it is to be sampled; None where they say nothing."""

    temperature: float | None = None
    """0 where they say greedy."""
    top_k: int | None = None
    """0 means off."""
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelAssets:
    name: str
    """What clients call the model unless told otherwise: the name of its file or folder."""
    tokenizer: Tokenizer
    chat_templates: Mapping[str, str]
    """Jinja sources by name, "default" first among them; empty for a model that is no chat model."""
    end_token_ids: frozenset[int]
    """Tokens that end an answer."""
    context_length: int | None
    """Tokens of prompt and answer together, if the files say."""
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)

    @classmethod
    def load(cls, path: str | Path) -> "ModelAssets":
        """Read a GGUF file or a Hugging Face folder.

        ModelFilesError, GGUFError (from the engine) or FileNotFoundError, each saying what to do.
        """
        path = Path(path)
        if path.is_dir():
            return _from_folder(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no such file or folder; give a .gguf file or a Hugging Face folder"
            )
        with GGUFFile(path) as file:
            return from_gguf_metadata(file.metadata, name=path.stem)

    def token_bytes(self) -> TokenBytes:
        """What the engine must know of the vocabulary to hold outputs to a grammar."""
        return TokenBytes(self.tokenizer.pieces, self.tokenizer.special_ids, self.end_token_ids)

    def chat_template(
        self,
        source: str | None = None,
        *,
        keep_thinking: bool = False,
        programs: Templates | None = None,
    ) -> ChatTemplate:
        """The model's template, or the given Jinja source in its place; TemplateError if there is none.

        `keep_thinking`, `programs`: see `ChatTemplate`.
        """
        sources = {"default": source} if source is not None else self.chat_templates
        if not sources:
            raise TemplateError(
                f"{self.name} has no chat template: use the completions API, or give one with --chat-template"
            )
        return ChatTemplate(sources, self.tokenizer, keep_thinking=keep_thinking, programs=programs)


def from_gguf_metadata(metadata: Mapping[str, Any], name: str) -> ModelAssets:
    """Assets from a GGUF file's metadata: key to Python value."""
    tokenizer = Tokenizer.from_gguf(metadata)
    prefix = "tokenizer.chat_template"
    templates = {"default": str(metadata[prefix])} if prefix in metadata else {}
    templates |= {
        k.removeprefix(prefix + "."): str(v) for k, v in metadata.items() if k.startswith(prefix + ".")
    }
    ends = {metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")}
    sampling = {
        "temperature": metadata.get("general.sampling.temp"),
        "top_k": metadata.get("general.sampling.top_k"),
        "top_p": metadata.get("general.sampling.top_p"),
        "min_p": metadata.get("general.sampling.min_p"),
        "repetition_penalty": metadata.get("general.sampling.penalty_repeat"),
    }
    return ModelAssets(
        name=name,
        tokenizer=tokenizer,
        chat_templates=templates,
        end_token_ids=_end_ids(tokenizer, templates, ends | {tokenizer.eos_id}),
        context_length=metadata.get(f"{metadata.get('general.architecture')}.context_length"),
        generation=_generation(sampling, "general.sampling"),
    )


def _from_folder(folder: Path) -> ModelAssets:
    tokenizer = Tokenizer.from_folder(folder)
    config = read_json(folder / "config.json")
    generation = read_json(folder / "generation_config.json")
    text_config = config.get("text_config")
    if isinstance(
        text_config, dict
    ):  # a model of several kinds of input keeps the language model's settings apart
        config = {**config, **text_config}
    templates = _folder_templates(folder)
    ends = {*_ids_in(generation, folder / "generation_config.json"), *_ids_in(config, folder / "config.json")}
    return ModelAssets(
        name=folder.resolve().name,
        tokenizer=tokenizer,
        chat_templates=templates,
        end_token_ids=_end_ids(tokenizer, templates, ends | {tokenizer.eos_id}),
        context_length=_first_int(
            config, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"
        ),
        generation=_generation(generation, str(folder / "generation_config.json")),
    )


def _folder_templates(folder: Path) -> dict[str, str]:
    """Newest form first: files of their own, then the text or the named list in tokenizer_config.json."""
    templates: dict[str, str] = {}
    given = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(given, str):
        templates["default"] = given
    elif isinstance(given, list):
        for i, entry in enumerate(given):
            if not isinstance(entry, dict) or not {"name", "template"} <= entry.keys():
                raise ModelFilesError(
                    f"{folder / 'tokenizer_config.json'}: chat_template[{i}] has no name or no template; "
                    "fetch the file again"
                )
            templates[str(entry["name"])] = str(entry["template"])
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_text(path, _MAX_TEMPLATE_BYTES)
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = read_text(folder / "chat_template.jinja", _MAX_TEMPLATE_BYTES)
    return templates


def _ids_in(config: Mapping[str, Any], path: Path) -> list[int]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) for i in ids):
        raise ModelFilesError(f"{path}: eos_token_id {value!r} is neither a token id nor a list of them")
    return ids


def _end_ids(
    tokenizer: Tokenizer, templates: Mapping[str, str], declared: Iterable[int | None]
) -> frozenset[int]:
    """Declared end tokens, those that end any text, and those that end a turn in the model's own template.

    Files often declare just one of several: a chat model ends turns with one token and documents with another.
    """
    ends = {i for i in declared if i is not None}
    sources = "\0".join(templates.values())
    for entry in tokenizer.added:
        ends_turn = entry.text in _END_OF_TURN and entry.text in sources
        if ends_turn or (entry.special and entry.text in _END_OF_TEXT):
            ends.add(entry.token_id)
    return frozenset(ends)


def _generation(values: Mapping[str, Any], where: str) -> GenerationDefaults:
    def number(key: str, low: float, high: float | None = None) -> float | None:
        value = values.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelFilesError(f"{where}: {key} {value!r} is not a number; correct the file")
        if value < low or (high is not None and value > high):
            limits = f"from {low}" if high is None else f"from {low} to {high}"
            raise ModelFilesError(f"{where}: {key} {value!r} is out of range ({limits}); correct the file")
        return float(value)

    top_k, max_new_tokens = number("top_k", -1), number("max_new_tokens", 1)
    return GenerationDefaults(
        temperature=0.0 if values.get("do_sample") is False else number("temperature", 0),
        top_k=None if top_k is None else max(0, int(top_k)),  # -1 is off too
        top_p=number("top_p", 0, 1),
        min_p=number("min_p", 0, 1),
        repetition_penalty=number("repetition_penalty", 0),
        max_new_tokens=None if max_new_tokens is None else int(max_new_tokens),
    )


def _first_int(config: Mapping[str, Any], *keys: str) -> int | None:
    return next((config[key] for key in keys if isinstance(config.get(key), int)), None)
