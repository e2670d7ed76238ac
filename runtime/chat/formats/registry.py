"""All formats of tool calls and of reasoning: by name, and by what a chat template says."""

from collections.abc import Mapping

from deeproot.runtime.chat.formats.json_calls import GRANITE, GRANITE_20B, HERMES, PHI4, SMOLLM2
from deeproot.runtime.chat.formats.llama import LLAMA3_JSON
from deeproot.runtime.chat.formats.mistral import MISTRAL, MISTRAL_ARGS, MISTRAL_ID, MISTRAL_NAMED
from deeproot.runtime.chat.formats.python_calls import PYTHONIC
from deeproot.runtime.chat.formats.sections import DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2
from deeproot.runtime.chat.formats.tagged import GLM45, QWEN3_CODER
from deeproot.runtime.chat.formats.tool_format import ToolFormat
from deeproot.runtime.chat.reasoning import ReasoningFormat

_THINK = ReasoningFormat("think", "<think>", "</think>")
_MISTRAL_THINK = ReasoningFormat("mistral", "[THINK]", "[/THINK]")
_GRANITE_THINK = ReasoningFormat("granite", "Here is my thought process:", "Here is my response:")
_SEED_THINK = ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>")

_ALL = (
    HERMES, SMOLLM2, QWEN3_CODER, GLM45, LLAMA3_JSON, PYTHONIC, MISTRAL, MISTRAL_NAMED, MISTRAL_ARGS, MISTRAL_ID,
    DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, GRANITE, GRANITE_20B, PHI4,
)  # fmt: skip
TOOL_FORMATS: Mapping[str, ToolFormat] = {format.name: format for format in _ALL}
TOOL_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("qwen", "qwen25", "qwen3", "granite4", "smollm3"), "hermes"),
    "qwen3_xml": "qwen3_coder",
    **dict.fromkeys(("glm", "glm47"), "glm45"),
    **dict.fromkeys(("llama3", "llama4_json"), "llama3_json"),
    "llama4_pythonic": "pythonic",
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v31",
    "phi4_mini_json": "phi4_mini",
}
"""What vLLM and SGLang call a format."""

REASONING_FORMATS: Mapping[str, ReasoningFormat | None] = {
    "think": _THINK,
    "mistral": _MISTRAL_THINK,
    "granite": _GRANITE_THINK,
    "seed_oss": _SEED_THINK,
    "none": None,
}
_OF_THINK = (
    "deepseek_r1", "deepseek-r1", "deepseek_v3", "deepseek-v3", "ernie45", "glm45", "hunyuan_a13b", "holo2",
    "kimi", "kimi_k2", "minimax", "minimax_m2", "nemotron_v3", "nano_v3", "olmo3", "qwen3", "qwen3-thinking",
    "smollm3", "step3",
)  # fmt: skip
REASONING_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(_OF_THINK, "think"),
    "magistral": "mistral",
    "seed-oss": "seed_oss",
}
"""What vLLM and SGLang call a format."""


def tool_format_named(name: str) -> ToolFormat:
    """By deeproot's, vLLM's or SGLang's name; KeyError for another."""
    return TOOL_FORMATS[TOOL_ALIASES.get(name, name)]


def reasoning_format_named(name: str) -> ReasoningFormat | None:
    """By deeproot's, vLLM's or SGLang's name; KeyError for another."""
    return REASONING_FORMATS[REASONING_ALIASES.get(name, name)]


_SIGNS: tuple[tuple[ToolFormat, tuple[str, ...]], ...] = (
    (DEEPSEEK_V3, ("<｜tool▁calls▁begin｜>", "```json")),
    (DEEPSEEK_V31, ("<｜tool▁calls▁begin｜>",)),
    (KIMI_K2, ("<|tool_calls_section_begin|>",)),
    (MISTRAL_ID, ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")),
    (MISTRAL_ARGS, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL, ("[TOOL_CALLS]",)),
    (QWEN3_CODER, ("<function=", "<parameter=")),
    (GLM45, ("<arg_key>",)),
    (PHI4, ("<|/tool_call|>",)),
    (PHI4, ("functools[",)),
    (PHI4, ("<|/tool|>", "<|tool|>")),
    (GRANITE, ("<|tool_call|>",)),
    (GRANITE_20B, ("<function_call>",)),
    (PYTHONIC, ("<|python_start|>",)),
    (PYTHONIC, ("[func_name1(",)),
    (LLAMA3_JSON, ("<|python_tag|>",)),
    (LLAMA3_JSON, ("<|start_header_id|>", '"parameters": ')),
)
"""Formats and the texts that all stand in a template of theirs; the first that fits is it."""


def tool_format_of(template: str) -> ToolFormat:
    """The format that a chat template with tools writes calls in; Hermes, the most common, if none is known."""
    return next((format for format, signs in _SIGNS if all(sign in template for sign in signs)), HERMES)


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """The marks that a chat template puts around reasoning; None if it knows of none."""
    for format in (_SEED_THINK, _MISTRAL_THINK, _GRANITE_THINK, _THINK):
        if format.opening in template or format.closing in template:
            return format
    return None
