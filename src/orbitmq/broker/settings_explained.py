"""What each setting of the broker means: for `orbitmq broker --explain` and docs/configuration.md.

One line a setting: key | unit | meaning | default, where that depends on the machine. `settings.py` has the values.
"""

from __future__ import annotations

from typing import Final

from orbitmq.access.settings import ACCESS_SETTINGS
from orbitmq.access.settings_explained import EXPLAINED as ACCESS_EXPLAINED
from orbitmq.broker.settings import AT_NEXT_START, NEVER_CHANGEABLE, Settings
from orbitmq.settings_reference import SettingRow, read_explanations, setting_rows

EXPLAINED: Final = read_explanations("""
# Who and where
brokerClusterName | | the cluster this broker belongs to
brokerName | | its name; a slave has its master's | this machine's name
brokerId | | 0 is the master, a slave has a greater one
brokerRole | | ASYNC_MASTER answers at once, SYNC_MASTER when enough copies exist (inSyncReplicas), SLAVE copies
namesrvAddr | | name servers, host:port parted by semicolons; none: nobody finds this broker | $NAMESRV_ADDR
fetchNamesrvAddrByAddressServer | | ask a web page for the name servers' addresses
fetchNameSrvAddrByDnsLookup | | namesrvAddr is a domain name that stands for all name servers
brokerIP1 | | the IP address that clients are told; empty: found out, and the log says why that one
brokerIP2 | | the IP address that slaves are told; empty: brokerIP1
bindAddress | | the address to listen on
listenPort | port | for clients; the one above it is for slaves, the second below it for old clients; 0 takes a free one
haListenPort | port | for slaves; 0: listenPort + 1
brokerPermission | bits | 4 may be read, 2 may be written, 6 both
regionId | | written into every message, for traces
configBlackList | | settings that may not be changed from afar, parted by semicolons; those that never may are not listed
rocketmqHome | | below it, in conf/, are the access files of 4.x | $ROCKETMQ_HOME
aclEnable | | the access files of 4.x decide who may do what

# Copies on slaves
enableSlaveActingMaster | | while no master is alive, the slave with the smallest id acts in its place; set it on all of them
enableRemoteEscape | | what an acting slave has to store it sends to another master; without, delays and transactions wait
brokerHeartbeatInterval | ms | between signs of life for name servers, where slaves may act
brokerNotActiveTimeoutMillis | ms | without a sign of life for so long, name servers take this broker for dead
syncBrokerMemberGroupPeriod | ms | between looks who is alive
haSendHeartbeatInterval | ms | how long a master that has nothing to copy keeps silent
haHousekeepingInterval | ms | without a word for so long, the connection of master and slave is closed
haTransferBatchSize | bytes | copied at once
haMaxGapNotInSync | bytes | a slave that is further behind does not count as a copy
haFlowControlEnable | | copy no faster than maxHaTransferByteInSecond
maxHaTransferByteInSecond | bytes/s | the limit for each slave
inSyncReplicas | copies | how many must exist before a SYNC_MASTER answers; the master's own counts
slaveTimeout | ms | how long a send waits for its copies
orbitmq.haTls | | the log is copied over TLS; set it on masters and slaves alike
orbitmq.haAuthentication | | a slave must say who it is, and be a user that may
syncFromLastFile | | an empty slave begins with the master's last file, not with its first

# Registration
registerNameServerPeriod | ms | how often the name servers are told that this broker lives; from 10,000 to 60,000
registerBrokerTimeoutMills | ms | how long a name server may take to answer a registration
forceRegister | | register even if a name server already knows everything
compressedRegister | | compress the list of topics

# Topics and groups
autoCreateTopicEnable | | the first message to a topic creates it
defaultTopicQueueNums | queues | of a topic that its first message creates, at most
autoCreateSubscriptionGroup | | the first member of a group creates it
clusterTopicEnable | | a topic with the cluster's name exists, and can be used
brokerTopicEnable | | a topic with the broker's name exists, and can be used
traceTopicEnable | | this broker keeps the traces of messages
msgTraceTopicName | | the topic that the traces of messages are kept in
traceOn | | messages are marked to be traced
clearRetryTopicWhenDeleteTopic | | retry topics of leases go with their topic
maxTopicLength | characters | without effect: names have up to 127

# Sending
maxMessageSize | bytes | the largest message, body and properties
startAcceptSendRequestTimeStamp | ms | sends are refused before this moment (since 1970)
rejectTransactionMessage | | refuse half messages
transactionTimeOut | ms | how long a producer has before it is asked what became of a transaction
transactionCheckInterval | ms | how often open transactions are looked at
transactionCheckMax | times | a producer is asked; then the transaction is given up
storeReplyMessageEnable | | replies to requests are kept like messages, beside being handed to the asker
sendThreadPoolQueueCapacity | sends | may wait for the disk; more are refused
waitTimeMillsInSendQueue | ms | while sends wait longer than this before they are read, a part of them is refused
osPageCacheBusyTimeOutMills | ms | a broker that stood still for 3 s and this long refuses what queued up meanwhile

# Pulling
longPollingEnable | | a pull that finds nothing waits for a message, as long as the client allows
shortPollingTimeMills | ms | without longPollingEnable, a pull that finds nothing waits for so long
litePullMessageEnable | | serve pull consumers of 4.x that assign queues themselves
slaveReadEnable | | a slave serves pulls, and a master sends readers that are far behind to it
enablePropertyFilter | | filters in SQL92
enableCalcFilterBitMap | | note for each message which filters it matches
expectConsumerNumUseFilter | groups | with filters on one topic, that enableCalcFilterBitMap makes notes for
maxErrorRateOfBloomFilter | % | of the notes of enableCalcFilterBitMap that may say yes in error
filterDataCleanTimeSpan | ms | a filter nobody used for so long is forgotten
useServerSideResetOffset | | the broker itself resets a group's offsets; else it tells the members to
maxMsgsNumBatch | messages | found by key at once, at most
defaultQueryMaxNum | messages | found by id at once, at most

# Leases (POP)
reviveQueueNum | queues | of the topic in which leases are noted
reviveInterval | ms | how often ended leases are looked for
popFromRetryProbability | % | of pops look at the retry topic first
enableRetryTopicV2 | | retry topics are named group+topic, so that no two can be mixed up
retrieveMessageFromPopRetryTopicV1 | | messages of retry topics with the old name are still delivered
popResponseReturnActualRetryTopic | | a retried message names its retry topic, not its own
popPollingSize | pops | may wait at one queue
maxPopPollingSize | pops | may wait in all
initPopOffsetByCheckMsgInMem | | a new group begins with the first message of a topic that is still young
enablePopMessageThreshold | | limit what a group may have on lease
popInflightMessageThreshold | messages | on lease for a group from one queue, at most
serverLoadBalancerEnable | | the broker assigns queues to leasing consumers that ask for it
defaultMessageRequestMode | | PULL or POP: how members of a group that says nothing get their messages
defaultPopShareQueueNum | queues | a member shares with others; -1: all with all

# Clients
notifyConsumerIdsChangedEnable | | members are told at once when one comes or goes
channelExpiredTimeout | ms | a client that sent no heartbeat for so long is gone
flushConsumerOffsetInterval | ms | how often consumer offsets are saved
flushDelayOffsetInterval | ms | how often offsets of the delay levels are saved
consumerOffsetUpdateVersionStep | commits | until slaves and tools are shown a new version of the offsets
disableConsumeIfConsumerReadSlowly | | groups that read too slowly are refused
consumerFallbehindThreshold | bytes | behind the end of the log: that is too slow for disableConsumeIfConsumerReadSlowly
messageDelayLevel | | what delay level 1, 2, ... means: 10s, 5m, 2h, 1d

# Timers
timerWheelEnable | | messages with any delay, beside the levels
timerPrecisionMs | ms | delays are rounded to it
timerMaxDelaySec | s | the longest delay
timerRollWindowSlot | slots | of the wheel; a message that waits longer is put on it again
timerFlushIntervalMs | ms | how often the wheel is saved
timerCongestNumEachSlot | messages | for one moment; above it sends are refused by chance, above twice it all are
timerStopEnqueue | | put no more messages on the wheel
timerStopDequeue | | deliver no messages from the wheel
mappedFileSizeTimerLog | bytes | of a file of the timer log
recallMessageEnable | | a message that waits can be called back
allowRecallWhenBrokerNotWriteable | | also while brokerPermission says that the broker takes no messages

# Compaction
enableCompaction | | topics with cleanup.policy=COMPACTION keep the last message of each key
compactionScheduleInternal | ms | how often topics are compacted
compactionMappedFileSize | bytes | of a compacted log's file
compactionCqMappedFileSize | bytes | of a file of a compacted log's queue index

# Connections
serverChannelMaxIdleTimeSeconds | s | a silent connection is closed
serverSocketBacklog | connections | waiting to be accepted

# Store
storePathRootDir | | the directory of everything this broker keeps | ~/store
storePathCommitLog | | of the messages, if they are to lie elsewhere
storeType | | default: there is no other
mappedFileSizeCommitLog | bytes | of a file of messages
mappedFileSizeConsumeQueue | bytes | of a file of a queue's index; 20 bytes a message
mappedFileSizeConsumeQueueExt | bytes | of a file of what is noted beside a queue's index
enableConsumeQueueExt | | note beside a queue's index which filters a message matches
mapperFileSizeBatchConsumeQueue | bytes | of a file of a batch queue's index; 46 bytes a batch
maxHashSlotNum | slots | of a file of the key index
maxIndexNum | entries | of a file of the key index
messageIndexEnable | | messages can be found by key
messageIndexSafe | | what the key index lost in a crash is entered again
flushDiskType | | SYNC_FLUSH answers when a message is on the disk, ASYNC_FLUSH before
flushIntervalCommitLog | ms | how often messages are written to the disk
flushCommitLogLeastPages | pages | of 4 KiB of messages are written to the disk together; fewer wait
flushCommitLogThoroughInterval | ms | how long fewer than flushCommitLogLeastPages wait at most
flushIntervalConsumeQueue | ms | how often queue indexes are written to the disk
flushConsumeQueueLeastPages | pages | of 4 KiB of a queue's index are written to the disk together; fewer wait
flushConsumeQueueThoroughInterval | ms | how long fewer than flushConsumeQueueLeastPages wait at most
syncFlushTimeout | ms | how long a send waits for the disk
transientStorePoolEnable | | messages are gathered in memory before they reach the file
transientStorePoolSize | buffers | of transientStorePoolEnable, each of a file's size
commitIntervalCommitLog | ms | how often messages that transientStorePoolEnable gathers are handed to the file
warmMapedFileEnable | | touch every page of a new file first
checkCRCOnRecover | | check the sums of messages when recovering
enabledAppendPropCRC | | messages get a sum of all of the record
forceVerifyPropCRC | | the sums of enabledAppendPropCRC are checked when recovering
enableLmq | | light queues; with enableMultiDispatch
enableMultiDispatch | | a message can be in several queues
maxLmqConsumeQueueNum | queues | light ones, at most
maxFilterMessageSize | bytes | of a queue's index that one filtered pull looks at
maxTransferBytesOnMessageInMemory | bytes | given to a pull, at most, of messages in memory
maxTransferCountOnMessageInMemory | messages | given to a pull, at most, of messages in memory
maxTransferBytesOnMessageInDisk | bytes | given to a pull, at most, of messages that are no longer in memory
maxTransferCountOnMessageInDisk | messages | given to a pull, at most, of messages that are no longer in memory
accessMessageInMemoryMaxRatio | % | of the machine's memory: what lies that close to the end of the log counts as in memory
fileReservedTime | hours | messages are kept
deleteWhen | hour | of the day when older files are deleted; several are parted by semicolons; 24 never comes
cleanResourceInterval | ms | how often it is looked for what can be deleted
cleanFileForciblyEnable | | delete at any hour, the oldest first, when the disk is nearly full
deleteCommitLogFilesInterval | ms | between the deletion of two files
deleteFileBatchMax | files | deleted at once
diskMaxUsedSpaceRatio | % | of the disk: above it expired files are deleted at any hour
diskSpaceCleanForciblyRatio | % | of the disk: above it also files that are not expired are deleted
diskSpaceWarningLevelRatio | % | of the disk: above it sends are refused

# Limits (0: none)
orbitmq.topicsCreatedPerMinute | topics/min | made by hand or by their first message
orbitmq.groupsCreatedPerMinute | groups/min | made by hand or by their first member

# Metrics and probes
metricsExporterType | | PROM serves /metrics, /healthz and /readyz over HTTP; DISABLE does not
metricsPromExporterPort | port | of metrics and probes; 0 takes a free one
metricsPromExporterHost | | the address that metrics and probes listen on; empty: bindAddress
""")


def rows() -> list[SettingRow]:
    """Every setting of a broker."""
    never = NEVER_CHANGEABLE | ACCESS_SETTINGS
    return list(setting_rows(Settings, {**EXPLAINED, **ACCESS_EXPLAINED}, never=never, at_next_start=AT_NEXT_START))
