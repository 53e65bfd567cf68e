"""`orbitmq dev --tls` and Apache's Java client, told what to trust as the welcome says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from tests.child import child
from tests.interop.drivers import ClientError, JavaClient
from tests.interop.java import build
from tests.interop.marks import INTEROP

pytestmark = INTEROP


def _trusting(authority: Path) -> dict[str, str]:
    return {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(authority),
    }


def test_a_java_client_trusts_the_throw_away_certificate_and_no_other(tmp_path: Path) -> None:
    java = build("5.3.3")
    command = [sys.executable, "-m", "orbitmq", "dev", "--port", "0", "--broker-port", "0", "--ephemeral", "--tls"]
    with child([*command, "--json-ready"], stdout=subprocess.PIPE) as dev:
        assert dev.stdout is not None
        try:
            ready = json.loads(dev.stdout.readline())
            stranger = tmp_path / "stranger.pem"
            trustme.CA().cert_pem.write_to_path(stranger)

            def send(folder: str, authority: Path) -> object:
                client = JavaClient(java, tmp_path / folder, properties=_trusting(authority))
                try:
                    client.call("OpenProducer", name="p", nameServer=ready["nameServer"], group="P", options={})
                    return client.send("p", "Orders", [{"text": "hello", "tag": "T", "keys": "k"}])
                finally:
                    client.close()

            assert send("trusting", Path(ready["tlsAuthority"]))
            with pytest.raises((ClientError, AssertionError), match="Remoting"):
                send("doubting", stranger)
        finally:
            dev.terminate()
