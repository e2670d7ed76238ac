"""What requests ask of sampling, through scheduler and model, against transformers in float64, token by token."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.hf import VOCAB, make_runner, tiny_model
from tests.scheduler.test_row_edits import by_definition
from transformers import PreTrainedModel

from deeproot.engine.radix import RadixCache
from deeproot.scheduler.config import SchedulerConfig, SpeculationConfig
from deeproot.scheduler.invariants import check, check_idle
from deeproot.scheduler.messages import AddRequest, SamplingParams, TokenOutput
from deeproot.scheduler.scheduler import Scheduler

SPECULATIONS = {"plain": None, "guessing": SpeculationConfig(5, prompt_lookup_min=1, prompt_lookup_max=3)}
REPEATING = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedModel:
    return tiny_model(folder, "llama").double()


def make_scheduler(folder: Path, speculation: SpeculationConfig | None, budget: int) -> Scheduler:
    runner = make_runner(folder, page_size=8)
    config = SchedulerConfig(8, budget, 300, speculation=speculation)
    return Scheduler(config, RadixCache(8), runner.pool, runner)


@pytest.fixture(params=SPECULATIONS)
def scheduler(
    request: pytest.FixtureRequest, folder: Path, reference: PreTrainedModel
) -> Iterator[Scheduler]:
    made = make_scheduler(folder, SPECULATIONS[request.param], 24)
    yield made
    check_idle(made)


def add(scheduler: Scheduler, rid: str, ids: list[int], **options: Any) -> SamplingParams:
    params = SamplingParams(**{"max_tokens": 40, "temperature": 0.0, "seed": 3, **options})
    scheduler.add(AddRequest(rid, np.array(ids, np.int32).tobytes(), params))
    return params


def run(scheduler: Scheduler) -> dict[str, list[TokenOutput]]:
    outputs: dict[str, list[TokenOutput]] = {}
    while scheduler.has_work:
        for output in scheduler.step():
            outputs.setdefault(output.rid, []).append(output)
        check(scheduler)
    return outputs


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [output.token_id for output in outputs if output.token_id is not None]


@torch.inference_mode()
def logits_of(reference: PreTrainedModel, ids: list[int]) -> np.ndarray:
    """`[len(ids), VOCAB]` float64."""
    return reference(torch.tensor([ids])).logits[0].numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "repetition": {"repetition_penalty": 1.4},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 1.1},
    "bias": {"logit_bias": {5: 4.0, 6: -100.0}},
    "least length": {"min_tokens": 30, "stop_token_ids": tuple(range(0, VOCAB, 2))},
    "all": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": -0.2,
        "logit_bias": {5: 2.0, 11: 6.0},
        "min_tokens": 12,
        "stop_token_ids": (11, 40),
    },
}


def test_greedy_tokens_are_those_of_the_definitions(scheduler: Scheduler, reference: PreTrainedModel) -> None:
    """All at once, so that rows with and without edits share steps."""
    asked = {
        name: add(scheduler, name, REPEATING, **options, logprobs=2) for name, options in OPTIONS.items()
    }
    outputs = run(scheduler)
    for name, params in asked.items():
        said = tokens(outputs[name])
        assert len(said) > 10, name
        ids = REPEATING + said
        raw = logits_of(reference, ids)[len(REPEATING) - 1 : -1]
        logprobs = log_softmax(raw)
        for i, token in enumerate(said):
            edited = by_definition(raw[i], params, REPEATING, said[:i])
            assert edited[token] >= edited.max() - 1e-4, f"{name}: token {i}"
            known = outputs[name][i].logprobs
            assert known is not None
            assert known.token_id == token
            np.testing.assert_allclose(known.logprob, logprobs[i, token], atol=1e-4)
            best = np.argsort(-logprobs[i])[:2]
            np.testing.assert_allclose([value for _, value in known.top], logprobs[i, best], atol=1e-4)
        ended = said[-1] in params.stop_token_ids
        assert outputs[name][-1].finish_reason == ("stop" if ended else "length")
        assert not set(said[: params.min_tokens]) & set(params.stop_token_ids)


def test_a_step_without_any_sampling_edits_nothing(scheduler: Scheduler, reference: PreTrainedModel) -> None:
    """A prompt of several steps, the first of which compute no logits at all."""
    prompt = [(7 * i) % 40 for i in range(60)]
    params = add(scheduler, "a", prompt, max_tokens=4, presence_penalty=1.0, min_tokens=2)
    found = tokens(run(scheduler)["a"])
    assert len(found) == params.max_tokens
    for i, token in enumerate(found):
        logits = logits_of(reference, prompt + found[:i])[-1]
        logits[list(set(found[:i]))] -= 1.0
        assert token == int(logits.argmax())


def test_prompts_are_scored_whatever_is_cached(scheduler: Scheduler, reference: PreTrainedModel) -> None:
    """Longer than a step's budget; with others beside it, and once more when all of it is in the cache."""
    prompt = np.random.default_rng(1).integers(0, VOCAB, 70).tolist()
    exact = log_softmax(logits_of(reference, prompt))
    for turn in range(2):
        add(scheduler, f"scored {turn}", prompt, prompt_logprobs=3, max_tokens=5)
        add(scheduler, f"beside {turn}", REPEATING, max_tokens=20)
        outputs = run(scheduler)
        scored = [entry for output in outputs[f"scored {turn}"] for entry in output.prompt_logprobs]
        assert [entry.token_id for entry in scored] == prompt[1:]
        wanted = exact[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose([entry.logprob for entry in scored], wanted, atol=1e-4)
        tops = [[value for _, value in entry.top] for entry in scored]
        np.testing.assert_allclose(tops, -np.sort(-exact[:-1])[:, :3], atol=1e-4)
        usage = outputs[f"scored {turn}"][-1].usage
        assert usage is not None
        assert usage.cached == 0


def test_a_preempted_prompt_is_scored_once(scheduler: Scheduler, reference: PreTrainedModel) -> None:
    prompt = np.random.default_rng(2).integers(0, VOCAB, 70).tolist()
    add(scheduler, "scored", prompt, prompt_logprobs=0, max_tokens=5)
    outputs = scheduler.step()
    scheduler.endings.preempt(scheduler.table.running()[0])
    outputs += run(scheduler)["scored"]
    scored = [entry for output in outputs for entry in output.prompt_logprobs]
    assert [entry.token_id for entry in scored] == prompt[1:]
    exact = log_softmax(logits_of(reference, prompt))[np.arange(69), prompt[1:]]
    np.testing.assert_allclose([entry.logprob for entry in scored], exact, atol=1e-4)


def test_draws_depend_on_seed_and_position_only(scheduler: Scheduler) -> None:
    """Alone, in company, after a preemption, with penalties, guessing or not: the same tokens."""
    options = {"temperature": 1.2, "frequency_penalty": 0.4, "seed": 11, "top_p": 0.9}
    add(scheduler, "alone", REPEATING, **options)
    wanted = tokens(run(scheduler)["alone"])
    others = [np.random.default_rng(i).integers(0, VOCAB, 9 + i).tolist() for i in range(5)]
    for i, ids in enumerate(others):
        add(scheduler, f"other {i}", ids, temperature=0.9, seed=i)
    add(scheduler, "again", REPEATING, **options)
    add(scheduler, "another seed", REPEATING, **{**options, "seed": 12})
    outputs: list[TokenOutput] = []
    for _ in range(9):
        outputs += scheduler.step()
    again = next(r for r in scheduler.table.running() if r.rid == "again")
    scheduler.endings.preempt(again)
    rest = run(scheduler)
    said = tokens([o for o in outputs if o.rid == "again"]) + tokens(rest["again"])
    assert said == wanted
    usage = rest["again"][-1].usage
    assert usage is not None
    assert (usage.output, usage.prompt, usage.cached + usage.computed) == (40, 13, 13)
    assert tokens([o for o in outputs if o.rid == "another seed"]) + tokens(rest["another seed"]) != wanted


def test_guessing_says_the_same_and_guesses_right(folder: Path, reference: PreTrainedModel) -> None:
    """Sampled tokens too, since each is drawn by seed and position from the logits that it would have had."""
    said = {}
    for name, config in SPECULATIONS.items():
        scheduler = make_scheduler(folder, config, 64)
        for i, temperature in enumerate((0.0, 0.0, 0.4, 0.7, 1.0)):
            bias = {20: 9.0, 21: 9.0}
            add(
                scheduler,
                str(i),
                [20, 21, 30 + i],
                temperature=temperature,
                seed=i,
                logit_bias=bias,
                max_tokens=60,
                logprobs=1,
            )
        outputs = run(scheduler)
        said[name] = {rid: tokens(news) for rid, news in outputs.items()}
        if config is not None:
            assert scheduler.counters.accepted > 20
            assert scheduler.counters.accepted < scheduler.counters.drafted
        assert all(
            o.logprobs and o.logprobs.token_id == o.token_id for news in outputs.values() for o in news
        )
    assert said["plain"] == said["guessing"]
