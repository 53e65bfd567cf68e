from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import MessageError
from orbitmq.message.compression import compress, decompress, plain_body
from orbitmq.message.record import decode_record
from orbitmq.message.sysflags import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from tests.golden_stores import VERSIONS, commit_log, manifest

ALGORITHMS = [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(body=st.binary(max_size=2000))
def test_any_body_survives_the_round_trip(algorithm: int, body: bytes) -> None:
    assert decompress(compress(body, algorithm), algorithm) == body


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_body_exactly_at_the_limit_passes_and_one_byte_more_does_not(algorithm: int) -> None:
    packed = compress(b"x" * 1000, algorithm)
    assert decompress(packed, algorithm, 1000) == b"x" * 1000
    with pytest.raises(MessageError, match="more than 999 bytes"):
        decompress(packed, algorithm, 999)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_bomb_costs_no_more_than_the_limit_allows(algorithm: int) -> None:
    bomb = compress(bytes(200 << 20), algorithm)
    tracemalloc.start()
    try:
        with pytest.raises(MessageError, match="more than"):
            decompress(bomb, algorithm, 1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_body_cut_short_or_broken_is_refused(algorithm: int) -> None:
    packed = compress(bytes(range(256)) * 40, algorithm)
    with pytest.raises(MessageError):
        decompress(packed[:-5], algorithm)
    with pytest.raises(MessageError):
        decompress(b"not compressed at all", algorithm)
    with pytest.raises(MessageError):
        decompress(b"", algorithm)


def test_no_type_bits_mean_zlib_as_old_clients_sent_it() -> None:
    assert plain_body(compress(b"body"), COMPRESSED) == b"body"
    assert plain_body(compress(b"body", COMPRESSION_LZ4), COMPRESSED | COMPRESSION_LZ4) == b"body"
    assert plain_body(b"body", 0) == b"body"


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(MessageError, match="unknown compression 0x400"):
        decompress(b"", 0x400)
    with pytest.raises(MessageError, match="unknown compression 0x400"):
        compress(b"", 0x400)


@pytest.mark.parametrize("module", ["lz4.frame", "zstandard"])
def test_a_missing_library_says_what_to_install(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    algorithm = COMPRESSION_LZ4 if module == "lz4.frame" else COMPRESSION_ZSTD
    with pytest.raises(MessageError, match="not installed") as raised:
        decompress(b"body", algorithm)
    assert raised.value.hint == "pip install 'orbitmq[compression]'"


@pytest.mark.parametrize("version", VERSIONS)
def test_bodies_that_java_compressed_inflate(version: str) -> None:
    log = commit_log(version)
    compressed = [m for m in manifest(version)["messages"] if m["sysFlag"] & COMPRESSED]
    assert compressed
    for wanted in compressed:
        message = decode_record(log, wanted["commitLogOffset"])
        assert len(plain_body(message.body, message.sys_flag)) > len(message.body)
