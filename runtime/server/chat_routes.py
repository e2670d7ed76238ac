"""`POST /v1/chat/completions`."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from deeproot.runtime.chat.continuation import ChatContinuation, Prompt
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.search_memory import Searches, scope_of
from deeproot.runtime.chat.tool_search import ToolShelf
from deeproot.runtime.explain.history import Chat, Tenant
from deeproot.runtime.output_text import OutputText
from deeproot.runtime.sampling_options import MAX_LOGPROBS, OptionError, check_choices
from deeproot.runtime.server.answers import answer
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.cache_marks import chat_marks, lease_of, without_marks
from deeproot.runtime.server.chat_shape import ChatShape
from deeproot.runtime.server.context_edits import edited
from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.explaining import Asker, asker_of, explained
from deeproot.runtime.server.generation_options import (
    check_common,
    engine_requests,
    new_id,
    sampling_options,
)
from deeproot.runtime.server.hinting import chat_hinting, hinted
from deeproot.runtime.server.job import Job
from deeproot.runtime.server.precedence import has_room
from deeproot.runtime.server.responses import AppliedEdit
from deeproot.runtime.server.schemas import ChatCompletionRequest
from deeproot.runtime.server.searching import SearchingJob, arranged
from deeproot.runtime.server.service_routes import check_model_name
from deeproot.runtime.server.state import ServerState, Serving, state_of
from deeproot.runtime.server.structure_fields import grammar_of
from deeproot.runtime.server.unsupported import CHAT_UNSUPPORTED
from deeproot.runtime.structured.held import stops_of
from deeproot.runtime.structured.output_grammar import ToolUse
from deeproot.scheduler.messages import Usage

_TEMPLATE_ARGUMENTS = frozenset(
    {"self", "messages", "tools", "add_generation_prompt", "continue_final_message"}
)
"""What `chat_template_kwargs` may not replace."""


def make_router(max_body_bytes: int) -> APIRouter:
    router = APIRouter(prefix="/v1")
    read_body = json_body(ChatCompletionRequest, max_body_bytes)

    @router.post(
        "/chat/completions",
        dependencies=[Depends(has_room)],
        openapi_extra=openapi_body(ChatCompletionRequest),
    )
    async def chat_completions(
        request: Request,
        state: Annotated[ServerState, Depends(state_of)],
        body: Annotated[ChatCompletionRequest, Depends(read_body)],
    ) -> Response:
        """A chat completion, whole or streamed."""
        started = time.perf_counter()
        serving = state.ready()
        name = check_model_name(body.model, state)
        check_common(body, CHAT_UNSUPPORTED)
        completion_id = new_id("chatcmpl")
        # Templates and tokenizers take long on long conversations; other streams go on meanwhile.
        asker = asker_of(request, body)
        job = await asyncio.to_thread(prepare_chat, serving, body, asker, completion_id, started)
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        tokenizer = serving.speech.assets.tokenizer if body.logprobs else None
        shape = ChatShape(completion_id, name, include_usage, tokenizer)
        return await answer(request, state, job, shape, stream=bool(body.stream))

    return router


def prepare_chat(
    serving: Serving,
    body: ChatCompletionRequest,
    asker: Asker,
    completion_id: str,
    started: float,
    *,
    endpoint: str = "chat",
    sent: Chat | None = None,
) -> Job | SearchingJob:
    """A checked chat completion as the engine's work; `endpoint` is its surface's name in the metrics. `sent`: its
    conversation to the letter, where that is known: `body` keeps no order of keys.

    Raises ApiError and OptionError. Slow on long conversations.
    """
    sent = conversation_of(body) if sent is None else sent
    chat, shelf, applied = shown_conversation(serving, asker.tenant, body, sent)
    if shelf is None:
        job = _one_reply(serving, body, asker, chat, chat.tools, completion_id, started, endpoint)
        job.applied_edits = applied
        return job
    if body.n not in (None, 1):
        raise invalid("n must be 1 where tools are deferred: set it to 1, or defer none.", "n")
    tools = (*shelf.shown, *shelf.deferred)
    scope = scope_of(asker.tenant.namespace, sent.tools)

    def follow(searches: Searches, used: Usage) -> Job | None:
        left = _with_tokens_left(body, used.output)
        if left is None:
            return None
        serving.searches.put(scope, sent.messages, searches)
        longer = dataclasses.replace(chat, messages=[*chat.messages, *searches.messages])
        rid = f"{completion_id}-{len(searches.messages)}"
        try:
            return _one_reply(serving, left, asker, longer, tools, rid, time.perf_counter(), endpoint)
        except OptionError:
            return None  # what was found leaves no room for the reply

    first = _one_reply(serving, body, asker, chat, tools, completion_id, started, endpoint)
    return SearchingJob(first, shelf, follow, applied)


def shown_conversation(
    serving: Serving, tenant: Tenant, body: ChatCompletionRequest, sent: Chat
) -> tuple[Chat, ToolShelf | None, tuple[AppliedEdit, ...] | None]:
    """What the template gets of the conversation that was sent: with searches for deferred tools, without what is to be
    cleared. Then the tools, if some are deferred, and what was cleared. Raises ApiError."""
    # Errors have to name messages as they were sent.
    with _template_errors():
        serving.speech.require_template().check(sent.messages, with_tools=bool(sent.tools))
    chat, shelf = arranged(serving, tenant, sent)
    chat, applied = edited(chat, body.context_management, serving.speech.assets.tokenizer)
    return chat, shelf, applied


def _with_tokens_left(body: ChatCompletionRequest, used: int) -> ChatCompletionRequest | None:
    """The request with what is left of its limit on tokens; None if nothing is."""
    limits = {
        name: limit - used
        for name in ("max_tokens", "max_completion_tokens")
        if (limit := getattr(body, name)) is not None
    }
    return body.model_copy(update=limits) if all(limit > 0 for limit in limits.values()) else None


def _one_reply(
    serving: Serving,
    body: ChatCompletionRequest,
    asker: Asker,
    chat: Chat,
    tools: Sequence[Mapping[str, Any]],
    rid: str,
    started: float,
    endpoint: str,
) -> Job:
    """One reply to `chat`, as the template gets it; `tools` are all that may be called."""
    speech = serving.speech
    use = ToolUse(tools, body.tool_choice, body.parallel_tool_calls is not False)
    separate_reasoning = body.separate_reasoning is not False
    continuation, rendered, prompt = prompt_of(serving, body, chat, asker.tenant.namespace)
    grammar = grammar_of(body, speech.grammars, tools=use, prompt=rendered if separate_reasoning else None)
    max_tokens, field = body.max_completion_tokens, "max_completion_tokens"
    if max_tokens is None:
        max_tokens, field = body.max_tokens, "max_tokens"
    options = sampling_options(body, max_tokens, logprobs=_num_logprobs(body))
    n = check_choices(body.n)
    requests = engine_requests(
        [rid] if n == 1 else [f"{rid}-{i}" for i in range(n)],
        prompt.token_ids,
        options,
        speech.defaults,
        fallback_seed=serving.seeds.getrandbits(64),
        prompt_field="messages",
        max_tokens_field=field,
        grammar=grammar,
    )
    texts = [
        OutputText(
            speech.assets.tokenizer,
            stops_of(grammar, options),
            parser=speech.reply_format.parser(rendered, use.callable, separate_reasoning=separate_reasoning),
            single_call=body.parallel_tool_calls is False,
            continues_text=bool(body.continue_final_message),
            min_tokens=options.min_tokens,
        )
        for _ in requests
    ]
    explaining, told = explained(serving, asker, requests, chat)
    marks, lease_s = chat_marks(body), lease_of(body)
    hinting = chat_hinting(serving, asker.tenant, chat, prompt.token_ids, marks, asker.session, lease_s)
    return Job(
        endpoint,
        hinted(hinting, told),
        tuple(texts),
        started,
        remember=lambda _, token_ids: continuation.remember(prompt, token_ids),
        tokens_saved=prompt.tokens_saved,
        choices=n,
        explaining=explaining,
        hinting=hinting,
        traceparent=asker.traceparent,
    )


def _num_logprobs(body: ChatCompletionRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        if body.top_logprobs == 0:
            return None
        raise invalid("top_logprobs needs logprobs: set logprobs to true, or leave it out.", "top_logprobs")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        raise invalid(
            f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {body.top_logprobs}.", "top_logprobs"
        )
    return (body.top_logprobs or 0) if body.logprobs else None


def conversation_of(body: ChatCompletionRequest) -> Chat:
    """What the template gets of a chat completion. Raises ApiError."""
    kwargs = dict(body.chat_template_kwargs or {})
    taken = sorted(_TEMPLATE_ARGUMENTS & kwargs.keys())
    if taken:
        raise invalid(f"chat_template_kwargs cannot set {taken[0]}.", "chat_template_kwargs")
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise invalid(
                "continue_final_message goes on with the last message, so no new one can be opened: leave "
                "add_generation_prompt out, or set it to false.",
                "add_generation_prompt",
            )
        kwargs |= {"add_generation_prompt": False, "continue_final_message": True}
    elif body.add_generation_prompt is False:
        kwargs["add_generation_prompt"] = False
    return without_marks(Chat(_dumped(body.messages), _dumped(body.tools or ()), kwargs))


def prompt_of(
    serving: Serving, body: ChatCompletionRequest, chat: Chat, namespace: bytes
) -> tuple[ChatContinuation, str, Prompt]:
    """What remembers the reply of a chat completion, the prompt's text, and the prompt. Raises ApiError."""
    with _template_errors():
        template = serving.speech.require_template()
        rendering = template.rendering(chat.messages, chat.tools, **chat.template_kwargs)
    continuation = serving.continuations.chat
    assert continuation is not None, "there is a template"
    exact = bool(body.deeproot and body.deeproot.exact)
    prompt = continuation.prompt(rendering, exact=exact, namespace=namespace)
    return continuation, rendering.text, prompt


@contextlib.contextmanager
def _template_errors() -> Iterator[None]:
    """What a template refuses is a 400."""
    try:
        yield
    except TemplateError as error:
        raise invalid(_sentence(error), _field_of(error)) from None


def _dumped(items: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [item.model_dump(exclude_unset=True) for item in items]


def _field_of(error: TemplateError) -> str:
    if error.message_index is None:
        return error.field or "messages"
    where = f"messages[{error.message_index}]"
    return f"{where}.{error.field}" if error.field else where


def _sentence(error: TemplateError) -> str:
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."
