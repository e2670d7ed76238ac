"""`/v1/cache`: what of a prompt is cached, what it would cost to send it, and how to have it computed ahead."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from deeproot.runtime.cache_price import Probed, Tariff, cost_of
from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.runtime.context.cost_oracle import EditCost
from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.sampling_options import check_prompt_length
from deeproot.runtime.server.body import json_body, openapi_body
from deeproot.runtime.server.disconnect import until_disconnect
from deeproot.runtime.server.generation_options import new_id
from deeproot.runtime.server.probing import ask_probe
from deeproot.runtime.server.prompt_source import TokenSource, given_ids
from deeproot.runtime.server.schemas import CacheSalt, RequestModel, Seconds
from deeproot.runtime.server.service_routes import check_model_name, json_response
from deeproot.runtime.server.state import ServerState, Serving, state_of
from deeproot.runtime.server.tenants import tenant_of
from deeproot.runtime.server.warming import cached_tokens, warm
from deeproot.runtime.warm_pieces import WARM_LEASE_S

MAX_PROBES = 128

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CacheRequest(RequestModel):
    """What all requests about the cache have."""

    model: str | None = None
    cache_salt: CacheSalt | None = None
    """Of the requests that are meant."""


class ProbeRequest(CacheRequest):
    """`POST /v1/cache/probe`."""

    prompts: Annotated[list[TokenSource], Field(min_length=1, max_length=MAX_PROBES, fail_fast=True)]


class PriceRequest(CacheRequest):
    """`POST /v1/cache/price`."""

    old: TokenSource
    """The prompt that would be sent otherwise, or was sent last."""
    new: TokenSource
    dollars_per_million: Price | None = None
    """Price of computed prompt tokens; without it the server's own price an hour counts."""


class WarmRequest(CacheRequest, TokenSource):
    """`POST /v1/cache/warm`."""

    lease_s: Seconds | None = None
    """How long what was computed is evicted after others; a minute if nothing is said."""
    wait: bool | None = None
    """Answer when it is done, and not at once."""


class WarmReply(msgspec.Struct, frozen=True):
    id: str
    prompt_tokens: int
    cached_tokens: int
    """By now."""


class ProbedPrompt(msgspec.Struct, frozen=True):
    prompt_tokens: int
    cached_tokens: int
    diverges_at: int | None
    """Its first token that is not cached; None: there is none."""


class ProbeReply(msgspec.Struct, frozen=True):
    prompts: tuple[ProbedPrompt, ...]
    tokens_per_second: float | None
    """How fast the engine computed prompts lately; None if it has not computed any."""


class PricedPrompt(msgspec.Struct, frozen=True):
    prompt_tokens: int
    cached_tokens: int
    cost: EditCost


class PriceReply(msgspec.Struct, frozen=True):
    tokens_recomputed: int
    """Of the new prompt."""
    seconds: float | None
    dollars: float | None
    extra_tokens: int
    """How many more than for the old one; below 0 if the new one is cheaper."""
    tokens_per_second: float | None
    old: PricedPrompt
    new: PricedPrompt


def make_router(max_body_bytes: int) -> APIRouter:
    router = APIRouter(prefix="/v1/cache")
    read_probe = json_body(ProbeRequest, max_body_bytes)
    read_price = json_body(PriceRequest, max_body_bytes)
    read_warm = json_body(WarmRequest, max_body_bytes)

    @router.post("/warm", openapi_extra=openapi_body(WarmRequest))
    async def warm_prefix(
        request: Request,
        state: Annotated[ServerState, Depends(state_of)],
        body: Annotated[WarmRequest, Depends(read_warm)],
    ) -> Response:
        """Compute a prompt ahead while nobody else wants the engine."""
        serving = state.ready()
        check_model_name(body.model, state)
        tenant, rid = tenant_of(request, body.cache_salt), new_id("warm")
        ids = await asyncio.to_thread(given_ids, serving, body, tenant, "")
        check_prompt_length(len(ids), serving.speech.defaults.max_model_len, "prompt")
        task = warm(serving, tenant, ids, WARM_LEASE_S if body.lease_s is None else body.lease_s, rid)
        if body.wait:
            await until_disconnect(request, _ended(task))
        reply = WarmReply(rid, len(ids), await cached_tokens(serving, tenant, ids))
        return json_response(reply)

    @router.post("/probe", openapi_extra=openapi_body(ProbeRequest))
    async def probe(
        request: Request,
        state: Annotated[ServerState, Depends(state_of)],
        body: Annotated[ProbeRequest, Depends(read_probe)],
    ) -> Response:
        """How much of each prompt is cached for the caller. Uses nothing."""
        serving = state.ready()
        check_model_name(body.model, state)
        fields = [f"prompts[{i}]" for i in range(len(body.prompts))]
        probed = await _probe(serving, tenant_of(request, body.cache_salt), body.prompts, fields)
        told = tuple(map(_probed_prompt, probed.prompt_tokens, probed.cached_tokens))
        return json_response(ProbeReply(told, probed.tokens_per_second))

    @router.post("/price", openapi_extra=openapi_body(PriceRequest))
    async def price(
        request: Request,
        state: Annotated[ServerState, Depends(state_of)],
        body: Annotated[PriceRequest, Depends(read_price)],
    ) -> Response:
        """What it would cost to send the new prompt now, and the old one."""
        serving = state.ready()
        check_model_name(body.model, state)
        tariff = Tariff(state.options.dollars_per_hour, body.dollars_per_million)
        tenant = tenant_of(request, body.cache_salt)
        probed = await _probe(serving, tenant, [body.old, body.new], ["old", "new"])
        return json_response(_price_reply(probed, tariff))

    return router


async def _ended(task: "asyncio.Task[None]") -> None:
    """Waits for a warming; whoever gives up waiting does not end it."""
    await asyncio.shield(task)


async def _probe(
    serving: Serving, tenant: Tenant, sources: Sequence[TokenSource], fields: Sequence[str]
) -> Probed:
    def tokenise() -> list[Int32Array]:
        return [given_ids(serving, one, tenant, field) for one, field in zip(sources, fields, strict=True)]

    prompts = await asyncio.to_thread(tokenise)
    return await ask_probe(serving, tenant, prompts)


def _probed_prompt(prompt_tokens: int, cached_tokens: int) -> ProbedPrompt:
    diverges_at = cached_tokens if cached_tokens < prompt_tokens else None
    return ProbedPrompt(prompt_tokens, cached_tokens, diverges_at)


def _price_reply(probed: Probed, tariff: Tariff) -> PriceReply:
    old, new = (
        PricedPrompt(probed.prompt_tokens[i], probed.cached_tokens[i], cost_of(probed, i, tariff))
        for i in (0, 1)
    )
    extra = new.cost.tokens_recomputed - old.cost.tokens_recomputed
    cost = new.cost
    return PriceReply(
        cost.tokens_recomputed, cost.seconds, cost.dollars, extra, probed.tokens_per_second, old, new
    )
