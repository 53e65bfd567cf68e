"""What Apache's admin library reads and writes in a name server, for which mqadmin has no command: the same here as there."""

from collections.abc import Callable, Iterator

import pytest

from tests.interop import wire
from tests.interop.conftest import STAND_IN
from tests.interop.drivers import ClientError, JavaClient
from tests.interop.marks import INTEROP
from tests.interop.world import World

pytestmark = INTEROP


@pytest.fixture(scope="module", params=[False, True], ids=["json", "binary"])
def binary_headers(request: pytest.FixtureRequest) -> bool:
    value: bool = request.param
    return value


@pytest.fixture(scope="module")
def admin(
    world: World, release: str, binary_headers: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaClient]:
    """The admin library, twice: "apache" asks Apache's name server, "orbit" ours."""
    client = JavaClient(world.java[release], tmp_path_factory.mktemp("admin") / "client", binary_headers=binary_headers)
    client.open_admin_tool("apache", world.apache[release].address)
    client.open_admin_tool("orbit", world.orbit.address)
    yield client
    client.close()


@pytest.fixture
def ask_both(admin: JavaClient) -> Callable[..., object]:
    """Calls a method of DefaultMQAdminExt against Apache's name server and ours; the answer, once the two are seen to be equal."""

    def ask_both(method: str, *arguments: object) -> object:
        apaches, ours = (_ask(admin, name, method, *arguments) for name in ("apache", "orbit"))
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
    assert ask_both("getKVConfig", space, "a=b") == "ü ✓;\n2"
    assert "(22)" in str(ask_both("getKVConfig", space, "missing"))
    ask_both("getKVListByNamespace", space)
    ask_both("deleteKvConfig", space, "a=b")
    assert ask_both("getKVListByNamespace", space) == {"table": {}}


def test_no_request_code_is_forgotten(world: World) -> None:
    apaches, ours = wire.served(world.apache["5.3.3"].address), wire.served(world.orbit.address)
    assert len(apaches) > 20
    assert apaches - ours == set()


@pytest.mark.parametrize(("key", "value"), [("", "no key"), ("no value", "")])
def test_an_empty_text_is_a_text_in_a_json_header_and_none_in_a_binary_one(
    admin: JavaClient, ask_both: Callable[..., object], binary_headers: bool, key: str, value: str
) -> None:
    """Without key or value we refuse, and name the field. Apache refuses a missing key too, in other words, and takes a missing
    value for one that it then does not find. So neither has it afterwards."""
    written = _ask(admin, "orbit", "createAndUpdateKvConfig", "Empty", key, value)
    assert _ask(admin, "apache", "createAndUpdateKvConfig", "Empty", key, value) == written or binary_headers
    if STAND_IN == "orbit":
        assert ("(29)" in str(written)) == binary_headers

    for name in ("apache", "orbit"):
        found = _ask(admin, name, "getKVConfig", "Empty", key)
        assert found != value if binary_headers else found == value
        _ask(admin, name, "deleteKvConfig", "Empty", key)


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
