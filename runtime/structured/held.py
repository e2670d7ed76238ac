"""What sampling settings become when an output is held to a grammar."""

from collections.abc import Sequence

import msgspec

from deeproot.runtime.sampling_options import OptionError, SamplingOptions
from deeproot.runtime.structured.output_grammar import OutputGrammar
from deeproot.scheduler.messages import SamplingParams


def held_to(
    grammar: OutputGrammar | None,
    params: SamplingParams,
    options: SamplingOptions,
    end_token_ids: Sequence[int],
) -> SamplingParams:
    """`params`, made from `options`, with the grammar. Raises OptionError for options that contradict one.

    Where the output must be whole, ids of the caller's that would end it early are left out.
    """
    if grammar is None:
        return params
    contradicts = "ignore_eos" if options.ignore_eos else "min_tokens" if params.min_tokens else None
    if contradicts is not None:
        raise OptionError(
            contradicts,
            f"{contradicts} contradicts a form of the output, which is complete at some point: leave it out.",
        )
    ends = tuple(end_token_ids) if grammar.whole else params.stop_token_ids
    return msgspec.structs.replace(params, grammar=grammar.text, stop_token_ids=ends)


def stops_of(grammar: OutputGrammar | None, options: SamplingOptions) -> tuple[str, ...]:
    """The stop strings that count: none inside of what must be whole."""
    return () if grammar is not None and grammar.whole else options.stop
