"""All of mqadmin's verbs: those that are done here, and what to use instead of the others.

The list is that of Apache 5.3.3. Java: MQAdminStartup
"""

from __future__ import annotations

from typing import Final

import click

from orbitmq.cli.lazy import CommandTable, LazyGroup

_TOPICS: Final = "orbitmq.cli.mqadmin.topics"
_GROUPS: Final = "orbitmq.cli.mqadmin.groups"
_BROKERS: Final = "orbitmq.cli.mqadmin.brokers"
_MESSAGES: Final = "orbitmq.cli.mqadmin.messages"
_OFFSETS: Final = "orbitmq.cli.mqadmin.offsets"
_ACCESS: Final = "orbitmq.cli.mqadmin.access"
_CARE: Final = "orbitmq.cli.mqadmin.care"
_TUNING: Final = "orbitmq.cli.mqadmin.tuning"
_NAME_SERVERS: Final = "orbitmq.cli.mqadmin.nameservers"

VERBS: Final[CommandTable] = {
    "updateTopic": (_TOPICS, "update_topic", "Update or create topic."),
    "deleteTopic": (_TOPICS, "delete_topic", "Delete topic from broker and NameServer."),
    "updateSubGroup": (_GROUPS, "update_group", "Update or create subscription group."),
    "deleteSubGroup": (_GROUPS, "delete_group", "Delete subscription group from broker."),
    "updateBrokerConfig": (_BROKERS, "update_broker_config", "Update broker's config."),
    "topicRoute": (_TOPICS, "topic_route_", "Examine topic route info."),
    "topicStatus": (_TOPICS, "topic_status", "Examine topic Status info."),
    "brokerStatus": (_BROKERS, "broker_status", "Fetch broker runtime status data."),
    "queryMsgById": (_MESSAGES, "query_by_id", "Query Message by Id."),
    "queryMsgByKey": (_MESSAGES, "query_by_key", "Query Message by Key."),
    "queryMsgByUniqueKey": (_MESSAGES, "query_by_unique_key", "Query Message by Unique key."),
    "queryMsgByOffset": (_MESSAGES, "query_by_offset", "Query Message by offset."),
    "printMsg": (_MESSAGES, "print_messages", "Print Message Detail."),
    "producerConnection": (_GROUPS, "producer_connection", "Query producer's socket connection and client version."),
    "consumerConnection": (_GROUPS, "consumer_connection", "Query consumer's connection, version and subscription."),
    "consumerProgress": (_GROUPS, "consumer_progress", "Query consumer's progress, speed."),
    "consumerStatus": (_GROUPS, "consumer_status", "Query consumer's internal data structure."),
    "cloneGroupOffset": (_OFFSETS, "clone_group_offset", "Clone offset from other group."),
    "clusterList": (_BROKERS, "cluster_list", "List cluster infos."),
    "topicList": (_TOPICS, "topic_list", "Fetch all topic list from name server."),
    "updateKvConfig": (_NAME_SERVERS, "update_kv_config", "Create or update KV config."),
    "deleteKvConfig": (_NAME_SERVERS, "delete_kv_config", "Delete KV config."),
    "wipeWritePerm": (_NAME_SERVERS, "wipe_write_perm", "Wipe write perm of broker in all name servers."),
    "addWritePerm": (_NAME_SERVERS, "add_write_perm", "Add write perm of broker in all name servers."),
    "resetOffsetByTime": (_OFFSETS, "reset_offset", "Reset consumer offset by timestamp."),
    "statsAll": (_BROKERS, "stats_all", "Topic and Consumer tps stats."),
    "allocateMQ": (_TOPICS, "allocate_queues", "Allocate MQ."),
    "checkMsgSendRT": (_MESSAGES, "check_send_time", "Check message send response time."),
    "getNamesrvConfig": (_NAME_SERVERS, "get_name_server_config", "Get configs of name server."),
    "updateNamesrvConfig": (_NAME_SERVERS, "update_name_server_config", "Update configs of name server."),
    "getBrokerConfig": (_BROKERS, "get_broker_config", "Get broker config by cluster or special broker."),
    "sendMessage": (_MESSAGES, "send_message", "Send a message."),
    "consumeMessage": (_MESSAGES, "consume_message", "Consume message."),
    "updateTopicPerm": (_TOPICS, "update_topic_permission", "Update topic perm."),
    "topicClusterList": (_TOPICS, "topic_cluster_list", "Get cluster info for topic."),
    "updateOrderConf": (_TOPICS, "update_order_conf", "Create or update or delete order conf."),
    "skipAccumulatedMessage": (_OFFSETS, "skip_accumulated", "Skip all messages that are accumulated currently."),
    "printMsgByQueue": (_MESSAGES, "print_queue", "Print Message Detail by queueId."),
    "queryMsgTraceById": (_CARE, "query_trace", "Query a message trace."),
    "brokerConsumeStats": (_CARE, "broker_consume_stats", "Fetch broker consume stats data."),
    "getConsumerConfig": (_CARE, "get_consumer_config", "Get consumer config by subscription group name."),
    "producer": (_CARE, "all_producers", "Query producer's instances, connection, status, etc."),
    "haStatus": (_CARE, "ha_status", "Fetch ha runtime status data."),
    "queryCq": (_CARE, "query_queue_index", "Query cq command."),
    "cleanExpiredCQ": (_CARE, "clean_expired_queues", "Clean expired ConsumeQueue on broker."),
    "cleanUnusedTopic": (_CARE, "clean_unused_topics", "Clean unused topic on broker."),
    "createUser": (_ACCESS, "create_user_", "Create user to cluster."),
    "updateUser": (_ACCESS, "update_user_", "Update user to cluster."),
    "deleteUser": (_ACCESS, "delete_user_", "Delete user from cluster."),
    "getUser": (_ACCESS, "get_user", "Get user from cluster."),
    "listUser": (_ACCESS, "list_user", "List user from cluster."),
    "copyUser": (_ACCESS, "copy_user", "Copy user to cluster."),
    "createAcl": (_ACCESS, "create_acl_", "Create acl to cluster."),
    "updateAcl": (_ACCESS, "update_acl_", "Update acl to cluster."),
    "deleteAcl": (_ACCESS, "delete_acl_", "Delete acl from cluster."),
    "getAcl": (_ACCESS, "get_acl", "Get acl from cluster."),
    "listAcl": (_ACCESS, "list_acl", "List acl from cluster."),
    "copyAcl": (_ACCESS, "copy_acl", "Copy acl to cluster."),
    "updateTopicList": (_TUNING, "update_topic_list", "Create or update topics in batch."),
    "updateSubGroupList": (_TUNING, "update_group_list", "Create or update groups in batch."),
    "setConsumeMode": (_TUNING, "set_consume_mode", "Set consume message mode. pull/pop etc."),
    "resetMasterFlushOffset": (_TUNING, "reset_master_flush_offset", "Reset master flush offset in slave."),
    "getColdDataFlowCtrInfo": (_TUNING, "cold_data_info", "Get cold data flow ctr info."),
    "updateColdDataFlowCtrGroupConfig": (_TUNING, "limit_cold_data", "Add or update cold data flow ctr group config."),
    "removeColdDataFlowCtrGroupConfig": (_TUNING, "unlimit_cold_data", "Remove consumer from cold ctr config."),
    "setCommitLogReadAheadMode": (_TUNING, "set_read_ahead", "Set read ahead mode for all commitlog files."),
    "deleteExpiredCommitLog": (_CARE, "delete_expired_log", "Delete expired CommitLog files."),
}

_NO_CONTROLLER: Final = "there is no controller here; use Apache's mqadmin with controllers"
_NO_CONTAINER: Final = "there are no broker containers here; start a process with `orbitmq broker`"
_NO_ROCKSDB: Final = "there is no RocksDB here; `orbitmq store` looks into a store directory"
_STATIC: Final = "static topics are not supported; `orbitmq topic create` makes an ordinary one"
INSTEAD: Final[dict[str, str]] = {
    "addBroker": _NO_CONTAINER,
    "removeBroker": _NO_CONTAINER,
    "sendMsgStatus": "use `orbitmq bench` or `orbitmq msg send`",
    "startMonitoring": "use `orbitmq group ls --watch`, or /metrics with Prometheus",
    "clusterRT": "use `orbitmq bench`",
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "exportMetadata": "use `orbitmq topic ls -a -o json` and `orbitmq group ls -a -o json`",
    "exportConfigs": "use `orbitmq broker config BROKER -o json`",
    "exportMetrics": "use `orbitmq broker stats -o json`, or /metrics with Prometheus",
    "exportMetadataInRocksDB": _NO_ROCKSDB,
    "exportPopRecord": "there are no such records here",
    "getSyncStateSet": _NO_CONTROLLER,
    "getBrokerEpoch": _NO_CONTROLLER,
    "getControllerMetaData": _NO_CONTROLLER,
    "getControllerConfig": _NO_CONTROLLER,
    "updateControllerConfig": _NO_CONTROLLER,
    "electMaster": _NO_CONTROLLER,
    "cleanBrokerMetadata": _NO_CONTROLLER,
    "dumpCompactionLog": "what is left of such a topic is read as any other: `orbitmq topic tail TOPIC --from earliest`",
    "rocksDBConfigToJson": _NO_ROCKSDB,
    "checkRocksdbCqWriteProgress": _NO_ROCKSDB,
}


class _Verbs(LazyGroup):
    table = VERBS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "help":
            return _help
        if cmd_name in INSTEAD:
            raise click.UsageError(f"mqadmin {cmd_name} is not done here: {INSTEAD[cmd_name]}", ctx)
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Verbs)
def mqadmin() -> None:
    """Apache's verbs and flags as they are, output in the original's columns; `--output json` for programs.

    Credentials and TLS come from the environment: ORBITMQ_ACCESS_KEY, ORBITMQ_SECRET_KEY, ORBITMQ_TLS=1.
    """


@click.command("help")
@click.argument("verb", required=False)
@click.pass_context
def _help(context: click.Context, verb: str | None) -> None:
    """What VERB takes, or which verbs there are. As the original has it."""
    assert context.parent is not None
    if verb is None:
        click.echo(mqadmin.get_help(context.parent))
        return
    command = mqadmin.get_command(context.parent, verb)
    if command is None:
        raise click.UsageError(f"mqadmin has no verb {verb!r}")
    with click.Context(command, parent=context.parent, info_name=verb) as of_verb:
        click.echo(command.get_help(of_verb))
