"""What the engine has cached of some prompts."""

from collections.abc import Sequence

from deeproot.engine.batch import Int32Array
from deeproot.runtime.cache_price import Probed
from deeproot.runtime.explain.history import Tenant
from deeproot.runtime.server.state import Serving
from deeproot.scheduler.questions import ProbeAnswer, ProbeQuestion


async def ask_probe(serving: Serving, tenant: Tenant, prompts: Sequence[Int32Array]) -> Probed:
    """Of a tenant's prompts, each int32 `[tokens]`. Raises EngineUnavailable."""
    raw = tuple(ids.tobytes() for ids in prompts)
    question = ProbeQuestion(raw, tenant.namespace, tuple(map(serving.shared.num_shared, raw)))
    answer = await serving.client.ask(question, ProbeAnswer)
    return Probed(tuple(map(len, prompts)), answer.cached, answer.tokens_per_second)
