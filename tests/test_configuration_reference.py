"""Every setting is explained, and the page about them is up to date."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orbitmq.access.settings import AccessSettings
from orbitmq.access.settings_explained import EXPLAINED as ACCESS_EXPLAINED
from orbitmq.broker import settings as broker
from orbitmq.broker import settings_explained as broker_explained
from orbitmq.configuration import TLS_EXPLAINED, known_keys, read_settings
from orbitmq.nameserver import settings as name_server
from orbitmq.nameserver import settings_explained as name_server_explained
from orbitmq.transport.tls import TlsSettings
from tests import configuration_reference


def test_the_page_is_up_to_date() -> None:
    assert configuration_reference.PAGE.read_text() == configuration_reference.page(), "run: make docs"


def test_every_setting_is_explained_and_nothing_else() -> None:
    assert ACCESS_EXPLAINED.keys() == known_keys(AccessSettings)
    assert {row.key for row in broker_explained.rows()} == known_keys(broker.Settings)
    assert {row.key for row in name_server_explained.rows()} == known_keys(name_server.Settings)
    assert known_keys(broker.Settings) >= broker.AT_NEXT_START
    for row in broker_explained.rows():
        assert row.meaning, row.key
        in_ms = row.key.endswith(("Ms", "Mills", "Millis"))
        assert not in_ms or row.unit == "ms", row.key


def test_every_tls_key_is_explained() -> None:
    """One that was left out here would be one that the servers know and the page does not."""
    assert len(TLS_EXPLAINED) == len(TlsSettings.__dataclass_fields__)
    given = {key: "require" if "auth" in key else "enforcing" if "mode" in key else "x" for key in TLS_EXPLAINED}
    _, unknown, tls = read_settings(broker.Settings, given)
    assert unknown == {}
    defaults = TlsSettings()
    assert all(getattr(tls, name) != getattr(defaults, name) for name in TlsSettings.__dataclass_fields__)


@pytest.mark.parametrize("server", ["broker", "nameserver"])
def test_the_command_explains_settings(server: str) -> None:
    command = [sys.executable, "-m", "orbitmq", server, "--explain"]
    shown = subprocess.run([*command, "listen*"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "listenPort=" in shown
    failed = subprocess.run([*command, "nosuch"], capture_output=True, text=True, timeout=60, check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "no setting is called 'nosuch'" in failed.stderr
