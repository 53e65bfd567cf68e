"""Java's properties text, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import BodyError
from orbitmq.protocol import command as commands
from orbitmq.protocol.frame import FrameDecoder
from orbitmq.protocol.properties_text import format_properties, parse_properties, properties_file
from tests.golden_frames import GoldenFrame, golden_frames


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("\n\r\n \t\f\n", {}),
        ("# comment\n! another\n   # indented\n", {}),
        ("a=1", {"a": "1"}),
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a = 1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t=\t1", {"a": "1"}),
        ("a  :  1 2 ", {"a": "1 2 "}),
        ("  a=1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("a==1", {"a": "=1"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("a=one\\\n   two", {"a": "onetwo"}),
        ("a=one\\\\\nb=2", {"a": "one\\", "b": "2"}),
        ("a=one\\\r\n two\\\n three", {"a": "onetwothree"}),
        ("a=end\\", {"a": "end"}),
        ("a\\ b=1", {"a b": "1"}),
        ("a\\=b=1", {"a=b": "1"}),
        ("a\\:b:1", {"a:b": "1"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u0041\\u00e9", {"a": "Aé"}),
        ("\\u0061=1", {"a": "1"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=\\ud83d", {"a": "\ufffd"}),
        ("a=/home/x\\\\y", {"a": "/home/x\\y"}),
        ("a\u00a0b=1", {"a\u00a0b": "1"}),
        ("namesrvAddr=1.1.1.1:9876;2.2.2.2:9876", {"namesrvAddr": "1.1.1.1:9876;2.2.2.2:9876"}),
    ],
)
def test_reads_what_java_reads(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uXYZW", "\\u=1", "a=\\u"])
def test_a_broken_escape_is_refused(text: str) -> None:
    with pytest.raises(BodyError, match="broken escape"):
        parse_properties(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_properties(text)
    except BodyError:
        assert "\\u" in text


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.dictionaries(TEXT, TEXT, max_size=6))
def test_a_file_is_read_as_it_was_written(properties: dict[str, str]) -> None:
    assert parse_properties(properties_file(properties)) == properties


@given(st.dictionaries(TEXT, TEXT, max_size=6))
def test_a_file_has_one_line_of_ascii_for_each_key(properties: dict[str, str]) -> None:
    text = properties_file(properties)
    assert text.isascii()
    assert text.count("\n") == len(properties)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z][A-Za-z0-9.]*", fullmatch=True), st.from_regex(r"[!-\[\]-~]*", fullmatch=True)
    )
)
def test_an_answer_of_plain_settings_is_read_as_it_was_written(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties)) == properties


def test_lines_are_sorted_by_key() -> None:
    assert format_properties({"b": "2", "a": "1"}) == properties_file({"b": "2", "a": "1"}) == "a=1\nb=2\n"


RECORDED = [golden for golden in golden_frames() if golden.to_code == 319 and golden.is_response]


@pytest.mark.parametrize("golden", RECORDED, ids=str)
def test_reads_the_settings_of_apaches_name_server(golden: GoldenFrame) -> None:
    body = commands.decode(FrameDecoder().feed(golden.data)[0]).body.decode()
    properties = parse_properties(body)
    assert properties["clusterTest"] == "false"
    assert sorted(format_properties(properties).splitlines()) == sorted(body.splitlines())
