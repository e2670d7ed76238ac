"""What `LLM` answers with."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.runtime.chat.reply_events import ReplyEvent, ToolCall, collect
from deeproot.runtime.output_text import EndReason, OutputText
from deeproot.scheduler.messages import TokenLogprobs, Usage


@dataclass(frozen=True, slots=True)
class Completion:
    """What a prompt was answered with."""

    text: str
    token_ids: tuple[int, ...]
    """Tokens of the output, an end token among them."""
    finish_reason: EndReason
    usage: Usage
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    """What the model thought before `text`, where its format tells them apart."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the output's tokens without an end token, if `SamplingOptions.logprobs` asked for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the prompt's tokens from the second on, if `SamplingOptions.prompt_logprobs` asked for them."""
    error: str | None = None
    """Why there is no more, if `finish_reason` is "error"."""


def ended_well(text: OutputText) -> bool:
    """Whether a reply is whole, or cut by its length."""
    return text.end is not None and text.end.reason not in ("abort", "error")


def completion_of(text: OutputText, events: Sequence[ReplyEvent]) -> Completion:
    """Of a run that has ended, with the events of its reply."""
    end = text.end
    assert end is not None, "the run has ended"
    answer = collect(events)
    return Completion(
        answer.content,
        tuple(text.token_ids),
        end.reason,
        end.usage,
        answer.calls,
        answer.reasoning,
        tuple(text.logprobs),
        tuple(text.prompt_logprobs),
        end.error,
    )
