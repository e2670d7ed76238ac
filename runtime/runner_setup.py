"""The runner that an engine's options ask for: with graphs, or in pieces of a fixed number of rows."""

import logging

from deeproot.engine.attention import AttentionBackend, BatchLimits
from deeproot.engine.fixed_rows import FixedRows
from deeproot.engine.graphs import CudaCapture, DecodeGraphs, graph_sizes
from deeproot.engine.invariance import NotInvariant, most_rows
from deeproot.engine.kv_pool import KVPool, OutOfPages
from deeproot.engine.loading import LoadedModel, faster_model
from deeproot.engine.runner import Runner
from deeproot.engine.sampling_choice import choose_sampler
from deeproot.runtime.options import EngineOptions, SetupError

logger = logging.getLogger(__name__)

_CPU_ROWS, _CUDA_ROWS = (32, 16, 1), (64, 16, 1)
"""Rows of a piece that are tried for the deterministic mode, the first that holds is taken. More rows make prompts
faster and single tokens slower."""


def batch_limits(options: EngineOptions, max_model_len: int) -> BatchLimits:
    """The largest batch that attention will be asked for."""
    least = max(_CPU_ROWS + _CUDA_ROWS) if options.deterministic else 0
    return BatchLimits(
        max(options.max_num_seqs, least), max(options.max_num_batched_tokens, least), max_model_len
    )


def make_runner(
    options: EngineOptions, loaded: LoadedModel, pool: KVPool, attention: AttentionBackend
) -> Runner:
    """Raises SetupError."""
    if options.deterministic:
        return _deterministic(loaded, pool, attention)
    device, graphs = loaded.device, None
    model = faster_model(loaded, attention)
    if device.type == "cuda" and not options.enforce_eager:
        sizes = graph_sizes(options.max_num_seqs)
        graphs = DecodeGraphs(model, pool, attention, sizes, device, CudaCapture())
    runner = Runner(model, pool, attention, device, graphs, choose_sampler(device))
    _capture_graphs(runner)
    return runner


def _deterministic(loaded: LoadedModel, pool: KVPool, attention: AttentionBackend) -> Runner:
    device = loaded.device

    def make(rows: int) -> Runner:
        cut = FixedRows(rows, pool.padding_page, pool.page_size)
        return Runner(loaded.model, pool, attention, device, None, choose_sampler(device), cut)

    try:
        rows, runner = most_rows(make, _CUDA_ROWS if device.type == "cuda" else _CPU_ROWS)
    except NotInvariant as error:
        raise SetupError(f"--deterministic cannot be had here: {error}") from None
    except OutOfPages:
        raise SetupError(
            "--deterministic is checked when the model is loaded, for which the KV cache is too small: give more with "
            "--kv-cache-memory-bytes"
        ) from None
    logger.info(
        "deterministic: computed in pieces of %d tokens; checked that logits depend on nothing else", rows
    )
    return runner


def _capture_graphs(runner: Runner) -> None:
    try:
        runner.capture_graphs()
    except RuntimeError as error:
        raise SetupError(
            f"CUDA graphs could not be captured ({error}): --enforce-eager does without them"
        ) from error
    if runner.graphs is not None:
        logger.info("CUDA graphs of decode batches: %d", len(runner.graphs))
