"""The files in deploy/: right in form, in agreement with each other, and their command lines and settings those of the real servers."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import pytest
import yaml

from orbitmq.broker import settings as broker
from orbitmq.cli.entry import cli
from orbitmq.nameserver import settings as name_server
from tests.child import child
from tests.deploy.shapes import Compose, ConfigMap, Kustomization, Manifest, Service, StatefulSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DATA = "/var/lib/orbitmq"
CONFIG = "/etc/orbitmq"
PROGRAM = "/opt/orbitmq/bin/orbitmq"
BROKER_PAGES = {"/healthz", "/readyz", "/metrics"}
NAME_SERVER_PAGES = {"/healthz", "/metrics"}


def compose() -> Compose:
    return msgspec.convert(yaml.safe_load((DEPLOY / "compose.yaml").read_text()), Compose)


def manifests() -> list[Manifest]:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    documents = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    return [msgspec.convert(document, Manifest) for document in documents]


def stateful_sets() -> list[StatefulSet]:
    return [manifest for manifest in manifests() if isinstance(manifest, StatefulSet)]


def unit(path: Path) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=True, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(path.read_text())
    return parsed


def dockerfile() -> list[tuple[str, str]]:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def command_lines() -> Iterator[tuple[str, Sequence[str]]]:
    """Every way in which a file starts our program."""
    for path in UNITS:
        program, *arguments = shlex.split(unit(path)["Service"]["ExecStart"])
        assert program == PROGRAM
        yield path.name, arguments
    for name, service in compose().services.items():
        yield f"compose {name}", service.command
    for manifest in stateful_sets():
        for container in manifest.spec.template.spec.containers:
            known = {variable.name for variable in container.env}
            assert set(re.findall(r"\$\((\w+)\)", " ".join(container.args))) <= known
            yield f"kubernetes {container.name}", container.args
    yield "Dockerfile", json.loads(dict(dockerfile())["CMD"])


@pytest.mark.parametrize(("where", "arguments"), list(command_lines()), ids=lambda value: str(value)[:40])
def test_the_real_command_understands_it(where: str, arguments: Sequence[str]) -> None:
    if list(arguments) == ["--help"]:
        return
    name, *rest = arguments
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    context = command.make_context(name, list(rest))
    file: Path = context.params["file"]
    assert file.parent == Path(CONFIG)
    assert (DEPLOY / "config" / file.name).exists()
    if name == "broker":
        assigned = dict(one.partition("=")[::2] for one in context.params["assignments"])
        stand_ins = {key: "10.0.0.1" if "$(POD_IP)" in value else value for key, value in assigned.items()}
        configuration = broker.load(DEPLOY / "config" / file.name, stand_ins)
        assert configuration.unknown == {}


def test_the_settings_are_settings_and_stay_in_the_data_folder() -> None:
    of_broker = broker.load(DEPLOY / "config" / "broker.conf")
    of_name_server = name_server.load(DEPLOY / "config" / "namesrv.properties")
    assert (of_broker.unknown, of_name_server.unknown) == ({}, {})
    assert of_broker.settings.store_path_root_dir.startswith(f"{DATA}/")
    assert of_name_server.settings.kv_config_path.startswith(f"{DATA}/")


def test_commented_settings_are_settings_too(tmp_path: Path) -> None:
    for name, load in (("broker.conf", broker.load), ("namesrv.properties", name_server.load)):
        uncommented = re.sub(r"^#(?=\w+=)", "", (DEPLOY / "config" / name).read_text(), flags=re.MULTILINE)
        (tmp_path / name).write_text(uncommented)
        configuration: Any = load(tmp_path / name)
        assert configuration.unknown == {}
        assert configuration.settings.authentication_enabled


def test_ports_and_paths_agree_everywhere() -> None:
    settings = broker.load(DEPLOY / "config" / "broker.conf").settings
    remoting, health = settings.listen_port, settings.metrics_prom_exporter_port
    names = name_server.load(DEPLOY / "config" / "namesrv.properties").settings
    asked, living = names.listen_port, names.metrics_prom_exporter_port
    assert settings.metrics_exporter_type == names.metrics_exporter_type == "PROM"
    exposed = {int(port) for port in dict(dockerfile())["EXPOSE"].split()}
    assert exposed == {asked, remoting - 2, remoting, remoting + 1, health, living}

    for manifest in stateful_sets():
        (container,) = manifest.spec.template.spec.containers
        ports = {port.name: port.container_port for port in container.ports}
        is_broker = container.args[0] == "broker"
        of_broker = {"remoting": remoting, "ha": remoting + 1, "health": health}
        assert ports == (of_broker if is_broker else {"remoting": asked, "health": living})
        probes = [container.readiness_probe, container.liveness_probe, *filter(None, [container.startup_probe])]
        for probe in probes:
            assert (probe.http_get is None) != (probe.tcp_socket is None)
            if probe.http_get is not None:
                pages = BROKER_PAGES if is_broker else NAME_SERVER_PAGES
                assert (probe.http_get.port, probe.http_get.path in pages) == ("health", True)
            if probe.tcp_socket is not None:
                assert probe.tcp_socket.port in ports
        mounts = {mount.mount_path: mount.name for mount in container.volume_mounts}
        assert mounts[DATA] in {claim.metadata.name for claim in manifest.spec.volume_claim_templates}
        volumes = {volume.name: volume for volume in manifest.spec.template.spec.volumes}
        assert volumes[mounts[CONFIG]].config_map is not None
        assert set(mounts.values()) == volumes.keys() | {"data"}
        annotations = manifest.spec.template.metadata.annotations
        assert annotations["prometheus.io/port"] == str(ports["health"])

    for service in compose().services.values():
        (volume,) = service.volumes
        assert volume.endswith(f":{DATA}")
        (url,) = re.findall(r"http://127.0.0.1:(\d+)(/\w+)", " ".join(service.healthcheck.test))
        is_broker = service.command[0] == "broker"
        assert int(url[0]) == (health if is_broker else living)
        assert url[1] in (BROKER_PAGES if is_broker else NAME_SERVER_PAGES)


def test_compose_names_only_what_it_has() -> None:
    whole = compose()
    for service in whole.services.values():
        assert {volume.partition(":")[0] for volume in service.volumes} <= whole.volumes.keys()
        assert set(service.depends_on) <= whole.services.keys()
        for host in re.findall(r"([\w-]+):9876", " ".join(service.command)):
            assert host in whole.services
        assert (DEPLOY / service.build.context / service.build.dockerfile).samefile(DEPLOY / "Dockerfile")


def test_kubernetes_objects_name_each_other_rightly() -> None:
    everything = manifests()
    services = {one.metadata.name: one for one in everything if isinstance(one, Service)}
    configs = {one.metadata.name: one for one in everything if isinstance(one, ConfigMap)}
    (kustomization,) = [one for one in everything if isinstance(one, Kustomization)]
    assert {file.name for file in (DEPLOY / "kubernetes").glob("*.yaml")} == {
        *kustomization.resources,
        "kustomization.yaml",
    }
    replicas = {}
    for one in stateful_sets():
        labels = one.spec.template.metadata.labels
        service = services[one.spec.service_name]
        assert one.spec.selector.match_labels == labels == service.spec.selector
        (container,) = one.spec.template.spec.containers
        assert {port.port for port in service.spec.ports} == {port.container_port for port in container.ports}
        replicas[one.metadata.name] = one.spec.replicas
        for volume in one.spec.template.spec.volumes:
            assert volume.config_map is None or volume.config_map.name in configs
    (config,) = configs.values()
    assert config.data == {path.name: path.read_text() for path in (DEPLOY / "config").iterdir()}

    variables = [v for one in stateful_sets() for c in one.spec.template.spec.containers for v in c.env]
    (listed,) = [variable.value for variable in variables if variable.name == "NAMESRV_ADDR"]
    assert listed is not None
    hosts = [f"orbitmq-nameserver-{n}.orbitmq-nameserver:9876" for n in range(replicas["orbitmq-nameserver"])]
    assert listed.split(";") == hosts


def test_the_dockerfile_copies_what_there_is() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for instruction, rest in dockerfile():
        assert instruction in known
        if instruction == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored
    steps = dict(dockerfile())
    assert steps["USER"].split(":")[0] != "0"
    assert steps["VOLUME"] == steps["WORKDIR"] == DATA
    assert json.loads(steps["ENTRYPOINT"]) == ["orbitmq"]
    users = {one.spec.template.spec.security_context.run_as_user for one in stateful_sets()}
    assert users == {int(steps["USER"].split(":")[0])}
    extras = re.findall(r"\.\[([\w,]+)\]", " ".join(rest for _, rest in dockerfile()))
    listed = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in listed for extra in extras[0].split(","))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_valid_and_asks_for_few_rights(path: Path, tmp_path: Path) -> None:
    service = unit(path)["Service"]
    for key, value in (("NoNewPrivileges", "true"), ("ProtectSystem", "strict"), ("CapabilityBoundingSet", "")):
        assert service[key] == value
    assert f"/var/lib/{service['StateDirectory']}" == DATA
    if shutil.which("systemd-analyze") is None:
        return  # its form was read above; nobody here can judge the rest
    stand_in = tmp_path / "orbitmq"
    stand_in.write_text("#!/bin/sh\n")
    stand_in.chmod(0o755)
    for each in UNITS:
        (tmp_path / each.name).write_text(each.read_text().replace(PROGRAM, str(stand_in)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, path.name in done.stderr) == (0, False), done.stderr


@contextmanager
def started(*arguments: str) -> Iterator[tuple[str, str]]:
    """A server; its address, and that of its pages."""
    command = [sys.executable, "-m", "orbitmq", *arguments, "--host", "127.0.0.1", "--port", "0"]
    with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        try:
            address = server.stdout.readline().split()[-1]
            lines = iter(server.stderr.readline, "")
            pages = next(match for line in lines if (match := re.search(r"http://(\S+)/metrics", line)))
            yield address, pages[1]
        finally:
            server.terminate()


@pytest.mark.timeout(300)
def test_servers_with_these_settings_start_and_say_that_they_are_ready(tmp_path: Path) -> None:
    """Only the folder and the ports are others."""
    for file in (DEPLOY / "config").iterdir():
        text = file.read_text().replace(DATA, str(tmp_path / "data"))
        (tmp_path / file.name).write_text(re.sub("(metricsPromExporterPort)=.*", r"\1=0", text))
    small = ["--set", "mappedFileSizeCommitLog=1048576"]
    with (
        started("nameserver", "-c", str(tmp_path / "namesrv.properties")) as (address, living),
        started("broker", "-c", str(tmp_path / "broker.conf"), "-n", address, *small) as (_, health),
    ):
        for where, pages in ((living, NAME_SERVER_PAGES), (health, BROKER_PAGES)):
            for page in sorted(pages):
                with urllib.request.urlopen(f"http://{where}{page}", timeout=120) as answer:
                    assert answer.status == 200
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["store"]
