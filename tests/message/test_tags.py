from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.message.tags import java_hash, java_hash_after, tag_code

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
