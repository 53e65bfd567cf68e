"""What each setting of the name server means: for `orbitmq nameserver --explain` and docs/configuration.md.

One line a setting: key | unit | meaning | default, where that depends on the machine. `settings.py` has the values.
"""

from __future__ import annotations

from typing import Final

from orbitmq.access.settings import ACCESS_SETTINGS
from orbitmq.access.settings_explained import EXPLAINED as ACCESS_EXPLAINED
from orbitmq.nameserver.settings import NEVER_CHANGEABLE, Settings
from orbitmq.settings_reference import SettingRow, read_explanations, setting_rows

EXPLAINED: Final = read_explanations("""
# Where things are
bindAddress | | the address to listen on
listenPort | port | 0 takes a free one
rocketmqHome | | shown to tools, without effect | $ROCKETMQ_HOME
kvConfigPath | | the file of key-value settings; users and policies lie beside it | ~/namesrv/kvConfig.json
configStorePath | | where changed settings are saved; with -c, that file | ~/namesrv/namesrv.properties
configBlackList | | settings that may not be changed from afar, parted by semicolons; those that never may need not be listed

# Routes
scanNotActiveBrokerInterval | ms | how often silent brokers are looked for
deleteTopicWithBrokerRegistration | | topics that a broker no longer names are dropped
unRegisterBrokerQueueCapacity | requests | of brokers that leave may wait
supportActingMaster | | a slave stands in for a lost master, where its broker allows
notifyMinBrokerIdChanged | | brokers are told which of them has the smallest id
orderMessageEnable | | routes say how ordered topics are spread
returnOrderTopicConfigToBroker | | brokers are given the settings of ordered topics
enableAllTopicList | | everybody may list all topics
enableTopicList | | everybody may list the topics of a cluster and of the system
needWaitForService | | refuse routes for a while after the start, until brokers have registered
waitSecondsForService | s | how long routes are refused, with needWaitForService
clusterTest | | topics unknown here are looked for in another cluster
productEnvName | | of the other cluster (clusterTest), in the address of the page that names its name servers

# Connections
serverChannelMaxIdleTimeSeconds | s | a silent connection is closed
serverSocketBacklog | connections | waiting to be accepted

# Ours
orbitmq.brokerSilentMillis | ms | a broker that does not say it itself may be silent for so long
orbitmq.maxDecompressedBytes | bytes | of a compressed registration, at most
metricsExporterType | | PROM serves /metrics and /healthz over HTTP; DISABLE does not
metricsPromExporterPort | port | of metrics and probes; 0 takes a free one
metricsPromExporterHost | | the address that metrics and probes listen on; empty: bindAddress
orbitmq.clusterTestNamesrvAddr | | the name servers of the other cluster (clusterTest), host:port parted by semicolons

# Of Java's machinery: accepted and shown, without effect
clientRequestThreadPoolNums | threads |
clientRequestThreadPoolQueueCapacity | requests |
defaultThreadPoolNums | threads |
defaultThreadPoolQueueCapacity | requests |
enableControllerInNamesrv | | must be false: there is no controller here
enableShutdownGracefully | | what was asked is always answered before a stop
serverAsyncSemaphoreValue | requests |
serverCallbackExecutorThreads | threads |
serverNettyWorkerGroupEnable | |
serverOnewaySemaphoreValue | requests |
serverPooledByteBufAllocatorEnable | |
serverSelectorThreads | threads |
serverSocketRcvBufSize | bytes |
serverSocketSndBufSize | bytes |
serverWorkerThreads | threads |
shutdownWaitTimeSeconds | s |
useEpollNativeSelector | |
writeBufferHighWaterMark | bytes |
writeBufferLowWaterMark | bytes |
""")

# Looked at once, when the name server starts. A change of these is saved and waits; any other counts at once.
AT_NEXT_START: Final = frozenset(
    {
        "clusterTest", "serverChannelMaxIdleTimeSeconds", "serverSocketBacklog", "metricsExporterType",
    }
)  # fmt: skip


def rows() -> list[SettingRow]:
    """Every setting of a name server."""
    never = NEVER_CHANGEABLE | ACCESS_SETTINGS
    return list(setting_rows(Settings, {**EXPLAINED, **ACCESS_EXPLAINED}, never=never, at_next_start=AT_NEXT_START))
