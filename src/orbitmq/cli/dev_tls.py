"""`orbitmq dev --tls`: a throw-away certificate authority in the data folder, and how each client is told to trust it.

    <data>/tls/ca.pem       what clients trust
    <data>/tls/server.pem   the servers' certificate, for the names and addresses they are reached by
    <data>/tls/server.key   its key

The authority's own key is never written, so nothing else can be signed with it. Files that fit are used again: a client that was
given them need not be told twice. Needs the package trustme, of the extra `tls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.cli.serving import ANY_ADDRESS
from orbitmq.errors import ConfigError
from orbitmq.saved_file import save
from orbitmq.transport.local_address import local_address

if TYPE_CHECKING:
    from pathlib import Path

_ALWAYS: Final = ("localhost", "127.0.0.1", "::1")
_HOW: Final = """
  TLS is spoken on the same ports as plain traffic. What to trust: {ca}
    Python   orbitmq.connect("{name_server}", tls=ssl.create_default_context(cafile="{ca}"))
    Java     java -Dtls.enable=true -Dtls.test.mode.enable=false -Dtls.client.authServer=true \\
                  -Dtls.client.trustCertPath={ca} ...
    Go       producer.WithTls(true), consumer.WithTls(true)     (it checks no certificate)
    here     SSL_CERT_FILE={ca} orbitmq topic ls --tls -n {name_server}
"""


class Certificates(NamedTuple):
    authority: Path
    certificate: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """For a server, under Apache's names."""
        return {"tls.server.certPath": str(self.certificate), "tls.server.keyPath": str(self.key)}

    def how_to_connect(self, name_server: str) -> str:
        return _HOW.format(ca=self.authority, name_server=name_server)


def certificates(folder: Path, host: str) -> Certificates:
    """Those of the folder, made if there are none for this host."""
    try:
        import trustme
    except ImportError:
        raise ConfigError(
            "--tls makes certificates with the package trustme, and it is not here",
            hint="pip install 'orbitmq[tls]', or run `orbitmq broker` with certificates of your own",
        ) from None
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    reached_by = local_address(()) if host in ANY_ADDRESS else host
    names = tuple(dict.fromkeys((*_ALWAYS, reached_by)))
    if not _fit(made, names):
        authority = trustme.CA(organization_name="OrbitMQ development, not for anything else")
        issued = authority.issue_cert(*names)
        chain = "".join(part.bytes().decode() for part in issued.cert_chain_pems)
        save(made.key, issued.private_key_pem.bytes().decode(), keep_old=False, private=True)
        save(made.certificate, chain, keep_old=False)
        save(made.authority, authority.cert_pem.bytes().decode(), keep_old=False)  # last: with it, the others are there
    return made


def _fit(made: Certificates, names: tuple[str, ...]) -> bool:
    from cryptography import x509  # trustme brings it

    if not all(path.exists() for path in made):
        return False
    certificate = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    listed = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    there = {str(name.value) for name in listed}
    return set(names) <= there
