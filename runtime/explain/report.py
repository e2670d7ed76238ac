"""What an explanation says. Field names and causes are part of the API."""

from enum import StrEnum

import msgspec


class Cause(StrEnum):
    """Why prompt tokens were computed and not taken from the cache."""

    FIRST_SEEN = "first_seen"
    """Nothing that began like this had been computed before."""
    EVICTED = "evicted"
    """They had been cached, and made room for others."""
    PREEMPTED = "preempted"
    """The request had computed them and was set back to waiting."""
    ENGINE_RESTARTED = "engine_restarted"
    """They were cached in an engine that is gone."""
    NOT_CACHED = "not_cached"
    """They had been computed, but what became of them is not known."""
    SALT = "salt"
    """The request that was named for comparison had another `cache_salt` or API key."""
    CHANGED_TIME = "changed_time"
    CHANGED_ID = "changed_id"
    CHANGED_COUNTER = "changed_counter"
    CHANGED_ORDER = "changed_order"
    CHANGED_WHITESPACE = "changed_whitespace"
    RESERIALISED_JSON = "reserialised_json"
    """The same JSON values, written otherwise."""
    CHANGED_TOOLS = "changed_tools"
    CHANGED_TEXT = "changed_text"
    """Other words, with something behind them that is the same."""
    MESSAGES_REMOVED = "messages_removed"
    MESSAGES_INSERTED = "messages_inserted"
    HISTORY_AS_TEXT = "history_as_text"
    """The model's reply came back inside another message than the assistant's."""
    RETOKENISED_OUTPUT = "retokenised_output"
    """The same text with other token ids."""
    THINKING_DROPPED = "thinking_dropped"
    """The chat template left out thinking that the cached text had."""
    THINKING_NOT_SENT = "thinking_not_sent"
    """The client sent a reply back without its thinking."""


class Miss(msgspec.Struct, frozen=True):
    """A run of prompt tokens that were computed, all for one cause."""

    cause: Cause
    tokens: int


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prompt stops repeating the earlier request that shares most with it."""

    token: int
    """Of the prompt, from 0."""
    segment: str
    """`tools`, `messages[3].content`, `messages[3].tool_calls`, `prompt`, or `template`."""
    role: str | None
    """Of the message."""
    literal: bool
    """Whether the words there are the chat template's own."""
    earlier: str
    """The id of the earlier request."""
    before: str
    """A few characters of it, from shortly before the place on."""
    after: str
    """What stands there now."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a prompt was or was not taken from the cache."""

    id: str
    created: int
    """Unix time."""
    prompt_tokens: int
    matched_tokens: int
    """Taken from the cache."""
    ceiling_tokens: int
    """What a cache without end would have had: the longest start that was ever computed, as far as the server
    remembers."""
    cause: Cause | None
    """Why the match ended where it did; None if only the last token, which always is, was computed."""
    misses: tuple[Miss, ...]
    """All tokens of the prompt that were computed, but for the last, and those computed once more after preemptions."""
    divergence: Divergence | None
    """None if the prompt only goes on where an earlier request ended, or nothing like it was seen."""
