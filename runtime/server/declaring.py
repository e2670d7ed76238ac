"""The file of `--shared-prefixes`: a list of prompts whose beginning is common to all tenants."""

import json
import logging
from pathlib import Path

from pydantic import ValidationError

from deeproot.engine.batch import Int32Array
from deeproot.engine.radix_node import common_tokens
from deeproot.runtime.client import QueueFull
from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.options import SetupError
from deeproot.runtime.sampling_options import OptionError, check_prompt_length
from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.generation_options import new_id
from deeproot.runtime.server.prompt_source import TokenSource, given_ids
from deeproot.runtime.server.schemas import ChatMessage
from deeproot.runtime.server.shared_prefixes import SharedPrefixes
from deeproot.runtime.server.state import Serving
from deeproot.runtime.server.warming import MAX_WARMINGS, warm

logger = logging.getLogger(__name__)

_USERS = ("A", "7 is", "\n\nZ")
"""What different users may say after a conversation's beginning."""
_GO_ON = ("", "a", " Z", "\n\n7", ".")
"""How a plain prompt may go on: its last word may have other tokens then."""


def read_shared_prefixes(path: Path) -> list[TokenSource]:
    """The prompts that a file lists. Raises SetupError that names the entry."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SetupError(f"--shared-prefixes {path} cannot be read: {error}") from None
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_WARMINGS:
        raise SetupError(
            f"--shared-prefixes {path} must hold a JSON list of 1 to {MAX_WARMINGS} prompts, such as "
            '[{"messages": [{"role": "system", "content": "You help."}]}]'
        )
    return [_source(path, i, entry) for i, entry in enumerate(listed)]


def declare(serving: Serving, path: Path) -> None:
    """Share from now on what a file lists. Slow: renders and tokenises. Raises SetupError."""
    sources = read_shared_prefixes(path)
    segments = [
        _segment(serving, source, f"--shared-prefixes {path}, [{i}]") for i, source in enumerate(sources)
    ]
    for i, segment in enumerate(segments):
        logger.info("shared prefix [%d] of %s: %d tokens", i, path, len(segment))
    serving.shared = SharedPrefixes(segments)


def warm_declared(serving: Serving) -> None:
    """Have all declared segments computed in idle steps. In the event loop."""
    for segment in serving.shared.segments:
        try:
            warm(serving, Tenant(), segment, 0.0, new_id("warm"))
        except QueueFull:
            return  # whoever uses it first computes it


def _source(path: Path, i: int, entry: object) -> TokenSource:
    try:
        source = TokenSource.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise SetupError(f"--shared-prefixes {path}, [{i}]: {field}: {first['msg']}") from None
    if sum(one is not None for one in (source.prompt, source.messages, source.token_ids)) != 1:
        raise SetupError(f"--shared-prefixes {path}, [{i}]: give one of prompt, messages and token_ids")
    return source


def _segment(serving: Serving, source: TokenSource, name: str) -> Int32Array:
    """The tokens with which all prompts of this beginning begin."""
    try:
        ways = [given_ids(serving, way, Tenant(), "") for way in _ways_on(source)]
        size = min(common_tokens(ways[0].tobytes(), way.tobytes()) for way in ways)
        check_prompt_length(size, serving.speech.defaults.max_model_len, "prompt")
    except (ApiError, OptionError) as error:
        raise SetupError(f"{name}: {error}") from None
    return ways[0][:size].copy()


def _ways_on(source: TokenSource) -> list[TokenSource]:
    if source.messages is not None:
        return [
            source.model_copy(update={"messages": [*source.messages, ChatMessage(role="user", content=said)]})
            for said in _USERS
        ]
    if source.prompt is not None:
        return [source.model_copy(update={"prompt": source.prompt + more}) for more in _GO_ON]
    return [source]
