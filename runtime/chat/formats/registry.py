"""All formats of tool calls and of reasoning: by name, and by what a chat template says."""

from collections.abc import Mapping

from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.formats.tool_format import ToolFormat
from deeproot.runtime.chat.reasoning import ReasoningFormat

_THINK = ReasoningFormat("think", "<think>", "</think>")
_MISTRAL_THINK = ReasoningFormat("mistral", "[THINK]", "[/THINK]")
_GRANITE_THINK = ReasoningFormat("granite", "Here is my thought process:", "Here is my response:")
_SEED_THINK = ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>")

TOOL_FORMATS: Mapping[str, ToolFormat] = {format.name: format for format in (HERMES,)}
TOOL_ALIASES: Mapping[str, str] = {"qwen": "hermes", "qwen25": "hermes"}
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


def tool_format_of(template: str) -> ToolFormat:
    """The format that a chat template with tools writes calls in."""
    return HERMES


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """The marks that a chat template puts around reasoning; None if it knows of none."""
    for format in (_SEED_THINK, _MISTRAL_THINK, _GRANITE_THINK, _THINK):
        if format.opening in template or format.closing in template:
            return format
    return None
