from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.message.tags import MOST_AT_ONCE, java_hash, java_hash_after, java_hashes_after, tag_code

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)


def plain_java_hash(text: str) -> int:
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(data), 2):
        value = (31 * value + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("*", 42),
        ("标签", 857175),
        ("", 0),
        ("polygenelubricants", -(2**31)),
        ("😀", 1772899),
    ],
)
def test_equals_javas_string_hash(text: str, code: int) -> None:
    assert java_hash(text) == code
    assert tag_code(text) == code


@given(ANY_TEXT)
def test_equals_the_definition_for_any_text(text: str) -> None:
    assert java_hash(text) == plain_java_hash(text)


@given(ANY_TEXT, ANY_TEXT)
def test_a_hash_can_go_on_from_its_prefix(prefix: str, text: str) -> None:
    assert java_hash_after(java_hash(prefix), text) == plain_java_hash(prefix + text)
    if text.isascii():
        assert java_hash_after(java_hash(prefix), text.encode()) == plain_java_hash(prefix + text)


@given(st.lists(st.tuples(st.text(max_size=3), st.text(st.characters(max_codepoint=127), max_size=64)), min_size=1))
def test_many_hashes_at_once_are_the_hashes_one_by_one(pairs: list[tuple[str, str]]) -> None:
    prefix_hashes = [java_hash(prefix) for prefix, _ in pairs]
    hashes = java_hashes_after(prefix_hashes, [text.encode() for _, text in pairs])
    assert hashes == [plain_java_hash(prefix + text) % 2**32 for prefix, text in pairs]


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64])
def test_as_many_hashes_as_there_may_be_at_once(length: int) -> None:
    texts = [f"{number:0{length}x}"[-length:] for number in range(MOST_AT_ONCE)]
    hashes = java_hashes_after([7] * MOST_AT_ONCE, [text.encode() for text in texts])
    assert hashes == [java_hash_after(7, text) % 2**32 for text in texts]


@pytest.mark.parametrize("odd", ["é", "x" * 65])
def test_texts_that_do_not_fit_side_by_side_are_left_to_be_hashed_one_by_one(odd: str) -> None:
    assert java_hashes_after([0, 0], [b"plain", odd.encode()]) is None
