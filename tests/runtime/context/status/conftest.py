"""Working sets that the tests of the status share."""

from collections.abc import Callable

import pytest

from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

MakeSet = Callable[..., WorkingSet]


@pytest.fixture
def make_set(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> MakeSet:
    segments = SegmentTokenizer(tok)

    def make(
        policy: LayoutPolicy | None = None, template: str = "qwen2.5-instruct", **options: object
    ) -> WorkingSet:
        made = make_template(template)
        return WorkingSet(policy=policy or ThreeZones(9000), tokenizer=segments, template=made, **options)  # type: ignore[arg-type]

    return make
