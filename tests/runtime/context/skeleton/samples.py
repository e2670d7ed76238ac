"""Sources of every language, and whether they parse."""

import re
from pathlib import Path

from deeproot.runtime.context.skeleton.fold import Skeleton, skeleton
from deeproot.runtime.context.skeleton.languages import (
    language_of,
    parser_of,
)

SAMPLES = dict(
    re.findall(
        r"^-- (\S+) --\n(.*?)(?=^-- \S+ --\n|\Z)",
        (Path(__file__).parents[1] / "fixtures" / "skeleton_samples.txtar").read_text(),
        re.M | re.S,
    )
)


def parses(text: str, language: str) -> bool:
    return not parser_of(language).parse(text.encode("utf-8", "replace")).root_node.has_error


def language(name: str) -> str:
    found = language_of(name)
    assert found is not None
    return found


def of_sample(name: str, **options: object) -> Skeleton:
    return skeleton(SAMPLES[name], language(name), **options)  # type: ignore[arg-type]
