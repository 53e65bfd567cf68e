"""`orbitmq broker` before it runs: what it would run with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.broker import settings as broker
from orbitmq.nameserver import settings as nameserver
from tests.cli.kit import Command

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def printed(*arguments: str) -> dict[str, str]:
    lines = Command("127.0.0.1:1").ok("broker", *arguments).out.splitlines()
    return dict(line.split("=", 1) for line in lines if line)


def test_every_setting_or_the_important_ones_are_printed(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("brokerName=from-file\nflushDiskType=SYNC_FLUSH\n")
    given = ("-c", str(tmp_path / "broker.conf"), "--set", "brokerName=from-line", "--store", str(tmp_path / "store"))
    every, important = printed(*given, "-p"), printed(*given, "-m")
    assert every["brokerName"] == important["brokerName"] == "from-line"
    assert every["flushDiskType"] == "SYNC_FLUSH"
    assert every["storePathRootDir"] == str(tmp_path / "store")
    assert important.items() < every.items()
    assert len(every) > 100
    assert not (tmp_path / "store").exists()  # nothing was started


def test_an_unknown_setting_is_named_with_the_nearest_known_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broker.conf").write_text("brokerNam=a\n")
    printed("-c", str(tmp_path / "broker.conf"), "-p")
    assert "brokerNam is no setting of a broker; did you mean brokerName?" in caplog.text


@pytest.mark.parametrize("server", [broker, nameserver])
def test_a_misspelt_tls_setting_is_named_and_its_value_is_not_shown(tmp_path: Path, server: ModuleType) -> None:
    (tmp_path / "file").write_text(
        "tls.server.mod=enforcing\ntls.server.keyPasswort=secret\ntls.server.mode=permissive\n"
    )
    configuration = server.load(tmp_path / "file")
    assert configuration.adjusted == (
        "tls.server.mod is no TLS setting, and counts for nothing; did you mean tls.server.mode?",
        "tls.server.keyPasswort is no TLS setting, and counts for nothing; did you mean tls.server.keyPassword?",
    )
    assert "secret" not in str(configuration.as_properties())


def test_a_number_out_of_its_bounds_is_named_with_what_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broker.conf").write_text("maxIndexNum=60000000\n")
    assert printed("-c", str(tmp_path / "broker.conf"), "-p")["maxIndexNum"] == "50000000"
    assert [record.getMessage() for record in caplog.records] == [
        "maxIndexNum=60000000 is out of range, from 2 to 50000000: 50000000 is used"
    ]
