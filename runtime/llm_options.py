"""What `LLM` is given, as options of an engine."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.speculative import parse_speculative


def engine_options_of(model: str | Path | EngineOptions, options: Mapping[str, Any]) -> EngineOptions:
    """Raises SetupError for an option that there is not."""
    if isinstance(options.get("speculative_config"), dict):
        try:
            read = parse_speculative(options["speculative_config"])
        except ValueError as error:
            raise SetupError(f"speculative_config: {error}") from None
        options = {**options, "speculative_config": read}
    if isinstance(model, EngineOptions):
        return dataclasses.replace(model, **options)
    known = {field.name for field in dataclasses.fields(EngineOptions)}
    for name in options:
        if name not in known:
            raise SetupError(f"LLM has no option {name!r}; it has: {', '.join(sorted(known - {'model'}))}")
    return EngineOptions(model=str(model), **options)
