"""Known fields that cannot be served yet: refused rather than silently ignored, unless they ask for nothing."""

from collections.abc import Mapping
from typing import Any

from deeproot.runtime.server.errors import invalid

_OFF: tuple[Any, ...] = (False,)
_ONE: tuple[Any, ...] = (1, 1.0)
_NEVER: tuple[Any, ...] = ()

_BOTH: Mapping[str, tuple[Any, ...]] = {
    "length_penalty": _ONE,
    "prompt_logprobs": _NEVER,
    "use_beam_search": _OFF,
    "bad_words": ([],),
    "allowed_token_ids": _NEVER,
    "include_stop_str_in_output": _OFF,
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": _NEVER,
    "truncate_prompt_tokens": _NEVER,
    "logits_processors": ([],),
    "prompt_embeds": _NEVER,
}
_CHAT: Mapping[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": _NEVER,
    "modalities": (["text"],),
    "web_search_options": _NEVER,
    "echo": _OFF,
    "documents": ([],),
    "chat_template": _NEVER,
}
_COMPLETION: Mapping[str, tuple[Any, ...]] = {"suffix": ("",), "top_logprobs": (0,)}

CHAT_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {**_BOTH, **_CHAT}
"""Field -> the values that ask for nothing, and so are let through."""
COMPLETION_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {**_BOTH, **_COMPLETION}


def refuse_unsupported(extra: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise a 400 that names the first field among `extra` that asks for what is not supported."""
    for field in unsupported.keys() & extra.keys():
        value = extra[field]
        inert = unsupported[field]
        if value is None or any(type(value) is type(nothing) and value == nothing for nothing in inert):
            continue
        hint = f" or set it to {_as_json(inert[0])}" if inert else ""
        raise invalid(
            f"{field} is not supported by this server yet: leave it out{hint}.", field, "unsupported"
        )


def _as_json(value: Any) -> str:
    return {False: "false", True: "true"}[value] if isinstance(value, bool) else str(value).replace("'", '"')
