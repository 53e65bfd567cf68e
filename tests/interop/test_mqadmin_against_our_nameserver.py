"""Apache's mqadmin prints the same with our name server as with Apache's own.

Every command runs twice, against the two name servers, about the same brokers and topics. What may differ is taken out first, and
only this: the address of the name server asked; the order of lines where Apache keeps names in a hash set; and what the functions
below named `_without...` say. Two more differences have tests of their own: how a forbidden and how an unfit setting is refused.
"""

import difflib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.interop.apache import Broker
from tests.interop.conftest import STAND_IN
from tests.interop.drivers import AdminAnswer
from tests.interop.java import RELEASES
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually
from tests.interop.wire import ask, brokers_of, register_now
from tests.interop.world import World

pytestmark = INTEROP

GET_BROKER_RUNTIME_INFO: Final = 28
TEMPLATE_TOPIC: Final = "TBW102"

# Where each name server lives is its own affair; the keys must be there.
OWN_SETTINGS: Final = ("bindAddress", "configStorePath", "kvConfigPath", "listenPort", "rocketmqHome")

AGREE_SECONDS: Final = 5
READING: Final = ("clusterList", "topicList", "topicRoute", "topicClusterList", "getNamesrvConfig")

Clean = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Both:
    """Runs mqadmin of one release against our name server and against Apache's of that release."""

    world: World
    release: str

    @property
    def broker(self) -> str:
        return self.world.brokers[self.release].name

    @property
    def cluster(self) -> str:
        return self.world.brokers[self.release].cluster

    def __call__(self, *command: str, clean: Clean = str) -> AdminAnswer:
        """Our answer, once both agree. A new topic reaches the name servers one after the other, so reading may take a moment."""
        deadline = time.monotonic() + (AGREE_SECONDS if command[0] in READING else 0)
        apaches, ours = self.each(*command, clean=clean)
        while apaches != ours and time.monotonic() < deadline:
            apaches, ours = self.each(*command, clean=clean)
        difference = difflib.ndiff(str(apaches).splitlines(), str(ours).splitlines())
        assert apaches == ours, f"{' '.join(command)}: - is Apache's, + is ours\n" + "\n".join(difference)
        return ours

    def each(self, *command: str, clean: Clean = str) -> tuple[AdminAnswer, AdminAnswer]:
        """Apache's answer and ours, whatever they are."""
        return self._run(self._apache, command, clean), self._run(self._orbit, command, clean)

    def delete_everywhere(self, topic: str) -> None:
        """Also from the name server of the other release, which this release's comparisons do not ask."""
        everyone = ";".join(self.world.name_servers)
        self.world.admins[self.release].run("deleteTopic", "-n", everyone, "-c", self.cluster, "-t", topic)

    @property
    def _apache(self) -> str:
        return self.world.apache[self.release].address

    @property
    def _orbit(self) -> str:
        return self.world.orbit.address

    def _run(self, name_server: str, command: tuple[str, ...], clean: Clean) -> AdminAnswer:
        answer = self.world.admins[self.release].run(*command, "-n", name_server)
        return AdminAnswer(
            clean(answer.out.replace(name_server, "NAMESERVER")),
            _without_help(answer.err.replace(name_server, "NAMESERVER")),
            answer.exit_status,
        )


@pytest.fixture
def both(world: World, release: str) -> Both:
    for broker in world.brokers.values():
        _wait_for_figures(broker)
    return Both(world, release)


@pytest.fixture
def topic(both: Both) -> Iterator[str]:
    """A topic of the release's own cluster, known to every name server, and gone from all of them afterwards."""
    world = both.world
    name = f"Admin-{both.release[0]}"
    admin = world.admins[both.release]
    admin.run("updateTopic", "-n", world.orbit.address, "-c", both.cluster, "-t", name)

    def unaware() -> list[str]:
        return [address for address in world.name_servers if not brokers_of(address, name)]

    eventually(unaware, lambda addresses: not addresses, 10, "the topic's route in every name server")
    yield name
    both.delete_everywhere(name)


def _wait_for_figures(broker: Broker) -> None:
    """A 4.9 broker cannot tell its figures in its first seconds; mqadmin then prints a stack trace."""
    eventually(lambda: ask(broker.address, GET_BROKER_RUNTIME_INFO).code, (0).__eq__, 30, "runtime info", every=0.2)


def test_cluster_list(both: Both) -> None:
    answer = both("clusterList", clean=_without_load_figures)
    assert [line.split()[1] for line in answer.out.splitlines()[1:]] == ["broker-4", "broker-5"]

    assert "broker-5" in both("clusterList", "-m", clean=_sorted_lines).out


def test_topic_list(both: Both, topic: str) -> None:
    assert topic in both("topicList", clean=_sorted_lines).out


def test_topic_route(both: Both, topic: str) -> None:
    assert both("topicRoute", "-t", TEMPLATE_TOPIC, "-l", clean=_sorted_lines).out.count("cluster-") == 2
    assert f'"{both.broker}"' in both("topicRoute", "-t", topic).out
    assert both.broker in both("topicRoute", "-t", topic, "-l").out
    assert "CODE: 17" in both("topicRoute", "-t", "NoSuchTopic").err


def test_topic_cluster_list(both: Both, topic: str) -> None:
    assert both("topicClusterList", "-t", topic).out == f"{both.cluster}\n"
    assert "CODE: 17" in both("topicClusterList", "-t", "NoSuchTopic").err


def test_brokers_come_in_the_same_order(both: Both) -> None:
    """mqadmin takes the first broker of a route for the whole of it, so the order shows: by name, as Apache's hash table happens
    to have names that differ in their last character."""
    assert '"broker-4"' in both("topicRoute", "-t", TEMPLATE_TOPIC).out
    assert both("topicClusterList", "-t", TEMPLATE_TOPIC).out == "cluster-4\n"
    assert TEMPLATE_TOPIC in both("topicList", "-c", clean=_sorted_lines).out


def test_kv_config(both: Both) -> None:
    assert "success" in both("updateKvConfig", "-s", "Space", "-k", "key", "-v", "value one").out
    assert "success" in both("updateKvConfig", "-s", "Space", "-k", "key", "-v", "value two").out
    assert "success" in both("deleteKvConfig", "-s", "Space", "-k", "key").out
    assert "success" in both("deleteKvConfig", "-s", "Space", "-k", "key").out
    assert "success" in both("deleteKvConfig", "-s", "NeverSeen", "-k", "key").out


def test_write_permission(both: Both, topic: str) -> None:
    try:
        assert re.search(r"OK, [1-9]", both("wipeWritePerm", "-b", both.broker).out)
        assert '"perm":4' in both("topicRoute", "-t", topic).out
        assert _permission(both, TEMPLATE_TOPIC) == "5"
        assert re.search(r"OK, [1-9]", both("addWritePerm", "-b", both.broker).out)
        assert _permission(both, TEMPLATE_TOPIC) == "6"  # it was 7: adding sets, and does not restore
        assert "OK, 0" in both("wipeWritePerm", "-b", "no-such-broker").out
        assert "OK, 0" in both("addWritePerm", "-b", "no-such-broker").out
    finally:
        register_now(both.world.brokers[both.release].address)


def test_name_server_configuration(both: Both) -> None:
    known = set(_settings(both.each("getNamesrvConfig")[0].out))

    def shared(text: str) -> str:
        return "".join(f"{key}={value}\n" for key, value in sorted(_settings(text).items()) if key in known)

    before = both("getNamesrvConfig", clean=shared).out
    assert "productEnvName=center\n" in before
    try:
        assert "success" in both("updateNamesrvConfig", "-k", "productEnvName", "-v", "elsewhere").out
        assert "productEnvName=elsewhere\n" in both("getNamesrvConfig", clean=shared).out
        assert "success" in both("updateNamesrvConfig", "-k", "noSuchSetting", "-v", "1").out
        assert "noSuchSetting" not in both("getNamesrvConfig", clean=shared).out
    finally:
        both("updateNamesrvConfig", "-k", "productEnvName", "-v", "center")
    assert both("getNamesrvConfig", clean=shared).out == before


def test_our_name_server_has_the_settings_of_the_newest_release_and_some_of_its_own(both: Both) -> None:
    apaches, ours = (set(_settings(answer.out)) for answer in both.each("getNamesrvConfig"))
    assert apaches <= ours
    if both.release == RELEASES[0]:
        # Its figures are ours to offer; their settings have the names that Apache's broker gives them.
        assert {key for key in ours - apaches if not key.startswith(("orbitmq.", "metrics"))} == set()


@pytest.mark.skipif(STAND_IN == "apache", reason="this is where we differ")
def test_a_value_that_does_not_fit_is_refused_where_apache_takes_it_for_something_else(both: Both) -> None:
    """A difference by intent: Apache answers "success" and reads "maybe" as false, or drops a number it cannot parse."""
    before = _settings(both.each("getNamesrvConfig")[1].out)
    for key in ("clusterTest", "scanNotActiveBrokerInterval"):
        apaches, ours = both.each("updateNamesrvConfig", "-k", key, "-v", "maybe")
        assert "success" in apaches.out
        assert re.search(rf"CODE: \d+  DESC: .*{key}=maybe", ours.err)
    assert _settings(both.each("getNamesrvConfig")[1].out) == before


@pytest.mark.parametrize("key", ["kvConfigPath", "configStorePath"])
def test_settings_that_name_files_cannot_be_changed(both: Both, key: str) -> None:
    apaches, ours = both.each("updateNamesrvConfig", "-k", key, "-v", "elsewhere")
    # 4.9 words its refusal differently from 5.x, which we follow for everybody.
    assert ours.err == apaches.err.replace("Can not update config path", "Can not update config in black list.")
    assert "CODE: 16" in ours.err


def test_order_configuration(both: Both, topic: str) -> None:
    assert "CODE: 22" in both("updateOrderConf", "-t", topic, "-m", "get").err
    assert "success" in both("updateOrderConf", "-t", topic, "-m", "put", "-v", f"{both.broker}:4;broker-x:2").out
    assert f"{both.broker}:4;broker-x:2" in both("updateOrderConf", "-t", topic, "-m", "get").out
    assert "orderTopicConf" not in both("topicRoute", "-t", topic).out
    try:
        both("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
        assert f'"orderTopicConf":"{both.broker}:4;broker-x:2"' in both("topicRoute", "-t", topic).out
    finally:
        both("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
    assert "success" in both("updateOrderConf", "-t", topic, "-m", "delete").out
    assert "CODE: 22" in both("updateOrderConf", "-t", topic, "-m", "get").err


def test_topics_made_changed_and_deleted(both: Both) -> None:
    broker, name = both.world.brokers[both.release], f"Changing-{both.release[0]}"
    assert "success" in both("updateTopic", "-c", broker.cluster, "-t", name).out
    assert '"writeQueueNums":8' in both("topicRoute", "-t", name).out

    # An order topic: mqadmin also keeps its queue counts in the name server.
    assert "success" in both("updateTopic", "-b", broker.address, "-t", name, "-r", "2", "-w", "3", "-o", "true").out
    assert '"writeQueueNums":3' in both("topicRoute", "-t", name).out
    assert f"{broker.name}:3" in both("updateOrderConf", "-t", name, "-m", "get").out

    assert "success" in both("deleteTopic", "-c", broker.cluster, "-t", name).out
    both.delete_everywhere(name)
    assert "CODE: 17" in both("topicRoute", "-t", name).err
    assert "success" in both("updateOrderConf", "-t", name, "-m", "delete").out
    assert "success" in both("deleteTopic", "-c", broker.cluster, "-t", "NoSuchTopic").out
    assert "[error]" in both("deleteTopic", "-c", "no-such-cluster", "-t", "NoSuchTopic").out


def _permission(both: Both, topic: str) -> str:
    """The last column of the line of the release's own broker."""
    lines = both("topicRoute", "-t", topic, "-l", clean=_sorted_lines).out.splitlines()
    return next(line.split()[-1] for line in lines if both.broker in line)


def _sorted_lines(text: str) -> str:
    return "\n".join(sorted(text.splitlines()))


def _without_help(text: str) -> str:
    """The remark of code 17 ends in help: a link with Apache's name server, another one in each release, and a hint with ours,
    after which the client puts its own link."""
    known = r"(No topic route info in name server for the topic: \S+)"
    link = r"\n[^\n]*https?://[^\n]*"
    return re.sub(rf"{known}(?: \([^\n]*\))?{link}", r"\1", text)


def _without_load_figures(text: str) -> str:
    """Cluster, broker, id, address and version; the other columns are the broker's own figures, which change while we look."""
    return _sorted_lines("\n".join(" ".join(line.split()[:5]) for line in text.splitlines()))


def _settings(text: str) -> dict[str, str]:
    pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("==")]
    return {key.strip(): "" if key.strip() in OWN_SETTINGS else value.strip() for key, value in pairs}
