"""Tokenising piece by piece gives what tokenising at once gives, and remembers no more than it may."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from deeproot.runtime.chat.control_guard import ControlGuard, Rendering
from deeproot.runtime.chat.piece_memory import PieceMemory
from deeproot.runtime.chat.tokenizer import Int32Array, Tokenizer

from .conftest import write_byte_level_folder
from .strategies import texts
from .test_template_families import PLAIN_ADDED, SPECIAL, SWALLOWING

# Tokens at which text may not be cut: they take what stands before them, or are found in normalised text only.
UNFIT = [
    AddedToken("<|left|>", special=True, normalized=False, lstrip=True),
    AddedToken("<|word|>", special=True, normalized=False, single_word=True),
    AddedToken("<|late|>", special=True, normalized=True),
]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    added = [*SPECIAL, *SWALLOWING, *UNFIT]
    return Tokenizer.from_folder(
        write_byte_level_folder(tmp_path_factory.mktemp("model"), added, PLAIN_ADDED, bos_token="<s>")
    )


@settings(max_examples=150, deadline=None)
@given(data=st.data(), marked=st.booleans())
@pytest.mark.parametrize("name", ["odd", "smol", "spm"])
def test_pieces_give_the_same_ids(
    name: str, data: st.DataObject, marked: bool, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    controls = st.sampled_from([entry.text for entry in tokenizer.added])
    parts = data.draw(st.lists(st.one_of(controls, texts, st.sampled_from([" ", "\n", "a"])), max_size=12))
    rendering = Rendering("".join(parts), marked)
    guard = ControlGuard(tokenizer, tokenizer.special_ids)
    memory = PieceMemory(10**6)
    whole = guard.encode_rendering(rendering).tolist()
    for _ in range(2):
        assert guard.encode_rendering(rendering, memory).tolist() == whole


def test_control_tokens_that_are_spelt_stay_text_beside_real_ones(smol: Tokenizer) -> None:
    """The same text, as a template's and as content, in one memory."""
    guard = ControlGuard(smol, smol.special_ids)
    memory, text = PieceMemory(10**6), "<|im_start|>user"
    real = guard.encode_rendering(Rendering(text, marked=False), memory)
    spelt = guard.marked(text, by_model=False)
    content = guard.encode_rendering(Rendering(spelt, marked=True), memory)
    assert smol.special_ids & set(real.tolist())
    assert not smol.special_ids & set(content.tolist())


class Counting:
    """An encoder that notes what it is given."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> Int32Array:
        self.asked.append(text)
        return np.array([ord(c) for c in text], dtype=np.int32)


def test_a_piece_is_encoded_once_for_each_scope() -> None:
    memory, encoder = PieceMemory(10**6), Counting()
    for _ in range(3):
        assert memory.encode(b"a", ["xy", "z", "xy"], encoder).tolist() == [120, 121, 122, 120, 121]
    assert encoder.asked == ["xy", "z"]
    memory.encode(b"b", ["xy"], encoder)
    assert encoder.asked == ["xy", "z", "xy"]
    assert memory.encode(b"a", [], encoder).tolist() == []


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.text(alphabet="ab", max_size=400), max_size=30), bound=st.integers(0, 5000))
def test_the_bound_is_kept(pieces: list[str], bound: int) -> None:
    memory, encoder = PieceMemory(bound), Counting()
    for piece in pieces:
        assert memory.encode(b"", [piece], encoder).tolist() == [ord(c) for c in piece]
        assert memory.num_bytes <= bound


def test_what_is_used_stays() -> None:
    memory, encoder = PieceMemory(2000), Counting()
    for i in range(50):
        memory.encode(b"", ["often", f"once {i}"], encoder)
    assert encoder.asked.count("often") == 1
    memory.encode(b"", ["once 0"], encoder)
    assert encoder.asked.count("once 0") == 2


def test_a_conversation_that_grows_is_encoded_where_it_is_new(smol: Tokenizer) -> None:
    guard, memory = ControlGuard(smol, smol.special_ids), PieceMemory(10**6)
    first = "<|im_start|>user\nHello<|im_end|>\n"
    guard.encode_rendering(Rendering(first, marked=False), memory)
    size = memory.num_bytes
    longer = first + "<|im_start|>assistant\nFine.<|im_end|>\n"
    ids = guard.encode_rendering(Rendering(longer, marked=False), memory)
    assert ids.tolist() == guard.encode_rendering(Rendering(longer, marked=False)).tolist()
    # One piece more: that of the answer; the ends of both turns are the same.
    answer = PieceMemory(10**6)
    guard.encode_rendering(Rendering("<|im_start|>assistant\nFine.", marked=False), answer)
    assert memory.num_bytes == size + answer.num_bytes
