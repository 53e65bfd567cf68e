"""Settings are explained by the command, too. That all of them are, and that docs/configuration.md says so, is in test_architecture.py."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from orbitmq.broker import settings as broker
from orbitmq.configuration import TLS_EXPLAINED, read_settings
from orbitmq.transport.tls import TlsSettings


def test_every_tls_key_is_explained() -> None:
    """One that was left out here would be one that the servers know and the page does not."""
    words = {"tls.server.need.client.auth": "require", "tls.server.mode": "enforcing", "tls.enable": "true"}
    given = {key: words.get(key, "x") for key in TLS_EXPLAINED}
    _, unknown, tls = read_settings(broker.Settings, given)
    assert unknown == {}
    for found, usual in ((tls, TlsSettings()), (tls.outgoing, TlsSettings().outgoing)):
        assert all(getattr(found, field.name) != getattr(usual, field.name) for field in dataclasses.fields(found))


@pytest.mark.parametrize("server", ["broker", "nameserver"])
def test_the_command_explains_settings(server: str) -> None:
    command = [sys.executable, "-m", "orbitmq", server, "--explain"]
    shown = subprocess.run([*command, "listen*"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "listenPort=" in shown
    failed = subprocess.run([*command, "nosuch"], capture_output=True, text=True, timeout=60, check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "no setting is called 'nosuch'" in failed.stderr
