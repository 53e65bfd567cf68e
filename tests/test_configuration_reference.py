"""Settings are explained by the command, too. That all of them are, and that docs/configuration.md says so, is in test_architecture.py."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from orbitmq.broker import settings as broker
from orbitmq.broker import settings_explained as broker_explained
from orbitmq.configuration import TLS_EXPLAINED, read_settings
from orbitmq.nameserver import settings_explained as nameserver_explained
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
    assert "\n    the address to listen on\n" in explained(command, "bindAddress")
    assert "cannot be changed while it runs" in explained(command, "listenPort")
    assert "a change counts at once" in explained(command, "orbitmq.maxConnections")
    assert "a change counts at the next start" in explained(command, "serverSocketBacklog")
    assert "enforcing turns plain traffic away" in explained(command, "tls.server.mode")
    failed = subprocess.run([*command, "nosuch"], capture_output=True, text=True, timeout=60, check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "no setting is called 'nosuch'" in failed.stderr
    meant = subprocess.run([*command, "listenPrt"], capture_output=True, text=True, timeout=60, check=False)
    assert "no setting is called 'listenPrt' (did you mean listenPort?" in meant.stderr


def test_settings_of_apache_s_that_do_nothing_are_said_to_do_nothing() -> None:
    command = [sys.executable, "-m", "orbitmq", "broker", "--explain"]
    assert "accepted and shown, without effect: sendMessageThreadPoolNums\n" in explained(command, "sendMessageThread*")


def explained(command: list[str], pattern: str) -> str:
    return subprocess.run([*command, pattern], capture_output=True, text=True, timeout=60, check=True).stdout


def test_each_meaning_is_understood_without_the_row_before() -> None:
    """As `--explain KEY` shows it."""
    rows = [*broker_explained.rows(), *nameserver_explained.rows()]
    leaning = re.compile(
        r"the same\b|of that\b|of such\b|of its\b|but |and |else |for that\b|for so long$|these\b|.* it is checked\b"
    )
    assert [row.key for row in rows if leaning.match(row.meaning)] == []
