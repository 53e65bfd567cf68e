"""What Apache's admin library reads and writes in a name server, for which mqadmin has no command: the same here as there."""

from collections.abc import Callable

import pytest

from tests.interop.drivers import ClientError, JavaClient
from tests.interop.marks import INTEROP
from tests.interop.world import World

pytestmark = INTEROP


@pytest.fixture(params=[False, True], ids=["json", "binary"])
def binary_headers(request: pytest.FixtureRequest) -> bool:
    value: bool = request.param
    return value


@pytest.fixture
def ask_both(
    world: World, release: str, binary_headers: bool, java_client: Callable[[bool], JavaClient]
) -> Callable[..., object]:
    """Calls a method of DefaultMQAdminExt against Apache's name server and ours; the answer, once the two are seen to be equal."""
    client = java_client(binary_headers)
    client.open_admin_tool("apache", world.apache[release].address)
    client.open_admin_tool("orbit", world.orbit.address)

    def ask_both(method: str, *arguments: object) -> object:
        apaches, ours = (_ask(client, name, method, *arguments) for name in ("apache", "orbit"))
        assert ours == apaches
        return ours

    return ask_both


def test_clusters_and_their_topics(ask_both: Callable[..., object]) -> None:
    assert set(ask_both("examineBrokerClusterInfo")["brokerAddrTable"]) == {"broker-4", "broker-5"}  # type: ignore[index]
    assert "TBW102" in str(ask_both("fetchAllTopicList"))
    assert "broker-5" in str(ask_both("fetchTopicsByCLuster", "cluster-5"))
    assert "broker-5" not in str(ask_both("fetchTopicsByCLuster", "cluster-4"))
    assert ask_both("fetchTopicsByCLuster", "no-such-cluster") == {"topicList": []}


def test_the_key_value_table(ask_both: Callable[..., object]) -> None:
    space = "Größen"
    assert "(22)" in str(ask_both("getKVListByNamespace", "NeverWritten"))
    ask_both("createAndUpdateKvConfig", space, "a=b", "ü ✓;\n2")
    ask_both("createAndUpdateKvConfig", space, "", "an empty key: none at all in a binary header")
    ask_both("createAndUpdateKvConfig", space, "empty value", "")
    assert ask_both("getKVConfig", space, "a=b") == "ü ✓;\n2"
    assert "(22)" in str(ask_both("getKVConfig", space, "missing"))
    ask_both("getKVListByNamespace", space)
    ask_both("deleteKvConfig", space, "a=b")
    ask_both("deleteKvConfig", space, "")
    ask_both("deleteKvConfig", space, "empty value")
    assert ask_both("getKVListByNamespace", space) == {"table": {}}


def _ask(client: JavaClient, name: str, method: str, *arguments: object) -> object:
    """The answer with lists in a fixed order, for Apache takes them from hash sets; or what the library threw."""
    try:
        return _sorted_lists(client.ask(name, method, *arguments))
    except ClientError as error:
        return str(error)


def _sorted_lists(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted_lists(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((_sorted_lists(item) for item in value), key=str)
    return value
