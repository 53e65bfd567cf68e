"""docs/interop.md: what was shown with which of Apache's programs, found in the interop tests; a test compares.

`FEATURES` names the tests that show a feature. For which releases they do is what pytest collects, so a line cannot promise what no
test runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.interop.java import RELEASES

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parent.parent.parent
PAGE: Final = ROOT / "docs" / "interop.md"

_JAVA_CLIENT: Final = "Apache's Java client on our servers"
_OUR_CLIENT: Final = "our client on Apache's servers"
_TOOLS: Final = "Apache's mqadmin, and ours"
_SERVERS: Final = "servers and stores, mixed"
# Column -> feature -> module::test
FEATURES: Final[Mapping[str, Mapping[str, str]]] = {
    _JAVA_CLIENT: {
        "Routes; topics made by their first message": "clients_through_our_nameserver::a_topic_made_by_its_first_message_gets_a_route",
        "Send (sync, async, one-way, batch, to a queue), push and pull": "clients_on_our_broker::every_way_to_send_and_to_receive",
        "Retries": "clients_on_our_broker::a_message_that_fails_comes_again",
        "Dead letters": "consumer_groups_on_our_broker::a_message_that_fails_too_often_becomes_a_dead_letter",
        "Orderly consumers": "clients_on_our_broker::orderly_consumption_keeps_each_queue_in_order",
        "Broadcasting": "consumer_groups_on_our_broker::every_member_of_a_broadcasting_group_receives_everything",
        "Members that come, leave, die": "consumer_groups_on_our_broker::members_share_the_queues_anew_when_one_joins_leaves_or_dies",
        "Namespaces": "consumer_groups_on_our_broker::a_namespace_keeps_topics_and_groups_apart",
        "Messages by key and id": "consumer_groups_on_our_broker::messages_are_found_by_key_by_unique_id_and_by_offset_id",
        "Message traces": "consumer_groups_on_our_broker::a_producer_that_traces_leaves_its_traces_in_the_trace_topic",
        "Transactions": "kinds_on_our_broker::only_what_the_producer_commits_is_consumed",
        "Requests and replies": "kinds_on_our_broker::a_request_gets_its_reply",
        "SQL92 filters": "kinds_on_our_broker::a_sql92_consumer_gets_what_its_filter_matches",
        "Leases (POP)": "leases::apaches_push_consumer_leases_what_either_client_sends_to_our_broker",
        "Leases, seen as on Apache's broker": "leases::apaches_client_sees_the_same_on_both_brokers",
        "Ordered leases": "leases::ordered_leases_are_the_same_on_both_brokers",
        "Retry topics of both names": "leases::retry_topics_of_both_names_are_read_alike",
        "Inner batches": "special_topics::apaches_client_unwraps_inner_batches",
        "Inner batches, from and to our client": "special_topics::both_clients_exchange_inner_batches",
        "Compacted topics, with our client": "special_topics::both_clients_read_back_the_latest_of_each_key",
        "Topics of one kind of message": "special_topics::a_topic_of_one_kind_takes_it_from_either_client_and_nothing_else",
        "Ordered topics, with our client": "client_python_on_our_broker::both_clients_keep_to_the_queues_of_an_ordered_topic",
        "Filters, order, broadcasting, namespaces, light queues: what our client sends": "client_python_on_our_broker::java_reads_every_kind_that_python_sends",
        "The same, what Java sends to our client": "client_python_on_our_broker::python_reads_every_kind_that_java_sends",
        "A slave acts for a master that dies and returns": "acting_master::a_java_consumer_goes_on_where_it_was_through_the_death_and_the_return_of_a_master",
        "Access control": "access_control::mqadmin_manages_users_and_java_clients_are_held_to_it",
        "Access files of 4.x": "access_control::old_java_clients_and_their_access_file",
        "TLS": "dev_tls::a_java_client_trusts_the_throw_away_certificate_and_no_other",
        "A name server is killed": "failures_around_our_nameserver::clients_go_on_whichever_of_three_name_servers_is_killed",
    },
    _OUR_CLIENT: {
        "Every way of sending": "client_python::every_way_of_sending_arrives",
        "Retries and dead letters": "client_python::a_failed_message_comes_again_and_then_goes_to_the_dead_letters",
        "Orderly consumers": "client_python::orderly_members_see_each_queue_in_order",
        "Broadcasting": "client_python::broadcasting_members_each_get_everything",
        "Members share and take over": "client_python::members_share_a_topic_and_take_over_when_one_leaves",
        "Filters, order, broadcasting, namespaces, light queues: to Java": "client_python::java_reads_every_kind_that_python_sends",
        "The same, from Java": "client_python::python_reads_every_kind_that_java_sends",
        "In one group with Java": "client_python::a_mixed_group_shares_the_queues",
        "Offsets by time and by hand": "client_python::offsets_by_time_and_by_hand",
        "Transactions": "client_python::only_what_a_transaction_commits_is_consumed",
        "Requests and replies, also with Java": "client_python::java_asks_and_python_answers",
        "Delays": "client_python::delays_by_timer_or_by_level",
        "Leases (POP), or a clear word": "client_python::leases_where_brokers_have_them_and_a_clear_word_where_not",
        "Message traces": "client_python::java_reads_what_python_traces",
        "Access control": "access_control::our_client_on_an_apache_broker_with_access_control",
    },
    _TOOLS: {
        "Apache's mqadmin prints the same of our broker": "mqadmin_against_our_broker::mqadmin_prints_the_same_of_either_broker",
        "Apache's mqadmin 4.9 on our broker": "mqadmin_against_our_broker::mqadmin_of_4_9_understands_our_broker_as_it_does_apaches",
        "Metrics: the same names and labels": "mqadmin_against_our_broker::prometheus_finds_the_same_metrics_with_the_same_labels",
        "Our mqadmin prints what the original prints": "our_mqadmin::prints_what_the_original_prints",
        "Our own commands and the doctor on Apache's cluster": "our_mqadmin::our_own_commands_work_on_apaches_cluster",
        "The key-value table": "admin_library_against_our_nameserver::the_key_value_table",
        "Clusters and their topics": "admin_library_against_our_nameserver::clusters_and_their_topics",
        "Our commands on clusters of both releases": "our_commands::both_releases_are_shown_side_by_side",
        "Every command of ours, as a program": "every_command::the_story_of_every_command",
        "The doctor on old clusters": "our_commands::the_doctor_looks_at_old_clusters_too",
    },
    _SERVERS: {
        "A store served by Apache's broker and ours in turns": "store_both_ways::each_goes_on_where_the_other_stopped",
        "Slaves and masters": "slaves_and_masters_mixed::roles_are_exchanged_between_ours_and_apaches",
        "Compacted topics, the same files": "special_topics::compacted_topics_keep_the_same_messages_in_the_same_files",
        "Inner batches, kept and pulled alike": "special_topics::inner_batches_are_kept_and_pulled_alike",
        "Light queues, filled and pulled alike": "special_topics::light_queues_are_filled_and_pulled_alike",
        "Leases of each other's stores": "leases::the_other_broker_goes_on_with_the_leases_of_a_store",
        "Spark on Apache's servers": "spark_on_apaches_servers::a_topic_on_both_releases_is_read_archived_and_found_in_the_live_stores",
    },
}
# Module -> the client it drives
LANGUAGES: Final = {
    "clients_in_go": "Go: rocketmq-client-go 2.1.2",
    "clients_in_cpp": "C++: the core in PyPI's rocketmq 0.4.4",
    "clients_in_node": "Node: ali-ons 3.12.0",
}
# Feature -> test, of every module that has it
IN_EVERY_LANGUAGE: Final[Mapping[str, str]] = {
    "It sends, compressed too; our client reads": "python_reads_what_it_sends",
    "Our client sends, in batches too; it reads, by tag too": "it_reads_what_python_sends",
    "In one group with our client": "a_mixed_group_shares_the_queues",
    "Retries and dead letters": "a_message_that_fails_comes_again_and_then_is_a_dead_letter",
    "Ordered sends and orderly consumers": "order_is_kept_from_sender_to_consumer",
    "Broadcasting": "every_member_of_a_broadcasting_group_gets_everything",
    "Delay levels": "a_delay_level_is_kept",
    "Access keys; a wrong one is refused": "its_signature_is_understood_and_a_wrong_one_refused",
    "SQL92 filters": "a_sql92_filter_matches",
    "Namespaces": "a_namespace_keeps_topics_and_groups_apart",
    "Pull consumers": "its_pull_consumer_gets_everything",
    "Transactions": "only_what_its_transactions_commit_is_consumed",
    "Requests and replies, both ways": "requests_are_answered_by_either_client",
    "Topics made, listed, deleted": "its_admin_tool_makes_lists_and_deletes_topics",
    "Message traces": "its_traces_are_found_by_the_id_of_a_message",
}
_ABOUT_LANGUAGES: Final = """
What is empty, that client does not have (C++: not behind its C interface); nor has any of them TLS. Sends are sync, async, one-way and in batches from Go and C++,
sync from Node. All run unmodified. Worth knowing, of the clients themselves: Go's `CreateReplyMessage` forgets the body (set it on
the message); producers of one Go instance share a heartbeat, which tells of a new one after up to 30 s (give each an instance name);
a Go consumer does not start before its topic has a route; ali-ons makes no topics by sending to them.

Other npm packages, tried on Node 20: `rocketmq-nodejs` 1.1.2 (a prebuilt C++ core) installs, sends and receives, once and by hand;
`rocketmq` 2.0.1, which has the same three classes as ali-ons, installs and loads, no more was tried; `apache-rocketmq` 1.0.0-rc1
does not install (`assert(major >= 8 && major <= 10)`). `ali-rocketmq` is built on an HTTP library, and `rocketmq-client-nodejs` on
gRPC, which needs RocketMQ's proxy: they speak another protocol. Clients in Rust are not run here.
"""
_INTRODUCTION: Final = """# What works with what

Made from the tests in `tests/interop/` by `make docs`. Each ✓ is a test that starts Apache's own program of that release and
fails when it is not served as Apache's servers, or clients, serve it. They run with `make test` where there is Java and Maven; those of
other languages where there is `go`, `npm`, and what they fetch. Where we differ on purpose: [compatibility.md](compatibility.md).
"""


def collected() -> dict[str, set[str]]:
    """module::test -> the releases it runs with."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/interop"]  # fmt: skip
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=300).stdout
    found: dict[str, set[str]] = defaultdict(set)
    for module, test, parameters in re.findall(r"^tests/interop/test_(\w+)\.py::test_(\w+)(.*)$", listed, re.MULTILINE):
        named = {release for release in RELEASES if release in parameters}
        found[f"{module}::{test}"] |= named or _named_in(module)
    return found


def _named_in(module: str) -> set[str]:
    """The releases that a module names itself; the newest, if it names none."""
    source = (ROOT / "tests" / "interop" / f"test_{module}.py").read_text()
    return {release for release in RELEASES if f'"{release}"' in source} or {RELEASES[0]}


def page(found: Mapping[str, set[str]]) -> str:
    releases = sorted(RELEASES)
    parts = [_INTRODUCTION]
    for column, features in FEATURES.items():
        heads = " | ".join(f"Apache {release}" for release in releases)
        parts.append(f"\n## {column[0].upper()}{column[1:]}\n\n| | {heads} |\n|---|{'---|' * len(releases)}\n")
        for feature, test in features.items():
            marks = " | ".join("✓" if release in found[test] else "" for release in releases)
            parts.append(f"| {feature} | {marks} |\n")
        if column == _JAVA_CLIENT:
            parts.append(_languages(found))
    return "".join(parts)


def _languages(found: Mapping[str, set[str]]) -> str:
    rows = [
        f"| {feature} | {' | '.join('✓' if f'{module}::{test}' in found else '' for module in LANGUAGES)} |\n"
        for feature, test in IN_EVERY_LANGUAGE.items()
    ]
    heads = f"| | {' | '.join(LANGUAGES.values())} |\n|---|{'---|' * len(LANGUAGES)}\n"
    return f"\n## Clients in other languages on our servers\n\n{heads}{''.join(rows)}{_ABOUT_LANGUAGES}"


if __name__ == "__main__":
    PAGE.write_text(page(collected()))
