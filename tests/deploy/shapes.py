"""The shape that Kubernetes and Docker Compose want, as far as our files use it. A field that is not here is an error, as it is there."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=63)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Quantity = Annotated[str, msgspec.Meta(pattern=r"^\d+(m|Ki|Mi|Gi|Ti)?$")]
Seconds = Annotated[int, msgspec.Meta(ge=1)]
Duration = Annotated[str, msgspec.Meta(pattern=r"^(\d+h)?(\d+m)?(\d+s)?$", min_length=2)]


class Shape(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    pass


# ---- Kubernetes


class Metadata(Shape):
    name: Name | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Selector(Shape):
    match_labels: dict[str, str]


class ServicePort(Shape):
    name: Annotated[str, msgspec.Meta(max_length=15)]
    port: Port


class ServiceSpec(Shape):
    selector: dict[str, str]
    ports: list[ServicePort]
    cluster_ip: str | None = msgspec.field(name="clusterIP", default=None)
    publish_not_ready_addresses: bool = False


class ContainerPort(Shape):
    name: Annotated[str, msgspec.Meta(max_length=15)]
    container_port: Port


class HttpGet(Shape):
    path: str
    port: str


class TcpSocket(Shape):
    port: str


class Probe(Shape):
    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    period_seconds: Seconds = 10
    timeout_seconds: Seconds = 1
    failure_threshold: Seconds = 3


class FieldRef(Shape):
    field_path: Literal["metadata.name", "metadata.namespace", "status.podIP"]


class ValueFrom(Shape):
    field_ref: FieldRef


class Variable(Shape):
    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class Resources(Shape):
    requests: dict[Literal["cpu", "memory", "storage"], Quantity]
    limits: dict[Literal["cpu", "memory"], Quantity] = {}


class Capabilities(Shape):
    drop: list[str]


class ContainerSecurity(Shape):
    allow_privilege_escalation: Literal[False]
    read_only_root_filesystem: Literal[True]
    capabilities: Capabilities


class VolumeMount(Shape):
    name: Name
    mount_path: str


class Container(Shape):
    name: Name
    image: str
    args: list[str]
    ports: list[ContainerPort]
    readiness_probe: Probe
    liveness_probe: Probe
    resources: Resources
    security_context: ContainerSecurity
    volume_mounts: list[VolumeMount]
    startup_probe: Probe | None = None
    env: list[Variable] = []


class SeccompProfile(Shape):
    type: Literal["RuntimeDefault"]


class PodSecurity(Shape):
    run_as_non_root: Literal[True]
    run_as_user: Annotated[int, msgspec.Meta(gt=0)]
    fs_group: Annotated[int, msgspec.Meta(gt=0)]
    seccomp_profile: SeccompProfile
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] = "Always"


class ConfigMapVolume(Shape):
    name: Name


class Volume(Shape):
    name: Name
    config_map: ConfigMapVolume | None = None
    empty_dir: dict[str, str] | None = None


class PodSpec(Shape):
    containers: list[Container]
    security_context: PodSecurity
    volumes: list[Volume]
    termination_grace_period_seconds: Seconds


class PodTemplate(Shape):
    metadata: Metadata
    spec: PodSpec


class ClaimSpec(Shape):
    access_modes: list[Literal["ReadWriteOnce"]]
    resources: Resources


class Claim(Shape):
    metadata: Metadata
    spec: ClaimSpec


class StatefulSetSpec(Shape):
    service_name: Name
    replicas: Annotated[int, msgspec.Meta(ge=1)]
    selector: Selector
    template: PodTemplate
    volume_claim_templates: list[Claim]
    pod_management_policy: Literal["OrderedReady", "Parallel"] = "OrderedReady"


class BudgetSpec(Shape):
    max_unavailable: int
    selector: Selector


class Namespace(Shape, tag_field="kind", tag="Namespace"):
    api_version: Literal["v1"]
    metadata: Metadata


class ConfigMap(Shape, tag_field="kind", tag="ConfigMap"):
    api_version: Literal["v1"]
    metadata: Metadata
    data: dict[str, str]


class Service(Shape, tag_field="kind", tag="Service"):
    api_version: Literal["v1"]
    metadata: Metadata
    spec: ServiceSpec


class StatefulSet(Shape, tag_field="kind", tag="StatefulSet"):
    api_version: Literal["apps/v1"]
    metadata: Metadata
    spec: StatefulSetSpec


class PodDisruptionBudget(Shape, tag_field="kind", tag="PodDisruptionBudget"):
    api_version: Literal["policy/v1"]
    metadata: Metadata
    spec: BudgetSpec


class Kustomization(Shape, tag_field="kind", tag="Kustomization"):
    api_version: Literal["kustomize.config.k8s.io/v1beta1"]
    namespace: Name
    resources: list[str]


Manifest = Namespace | ConfigMap | Service | StatefulSet | PodDisruptionBudget | Kustomization


# ---- Docker Compose: https://github.com/compose-spec/compose-spec


class Composed(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class Build(Composed):
    context: str
    dockerfile: str


class Healthcheck(Composed):
    test: list[str]
    interval: Duration
    timeout: Duration
    start_period: Duration


class ComposeService(Composed):
    image: str
    build: Build
    command: list[str]
    volumes: list[str]
    restart: Literal["no", "always", "on-failure", "unless-stopped"]
    stop_grace_period: Duration
    read_only: bool
    tmpfs: list[str]
    cap_drop: list[str]
    security_opt: list[str]
    ulimits: dict[str, int]
    healthcheck: Healthcheck
    ports: list[str] = []
    depends_on: list[str] = []


class Compose(Composed):
    name: str
    services: dict[str, ComposeService]
    volumes: dict[str, None]
    shared: dict[str, object] = msgspec.field(name="x-server")
