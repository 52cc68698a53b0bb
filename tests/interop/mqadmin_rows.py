"""
Every ``mqadmin`` command of RocketMQ 5.4: what it does at our name server and store.

The table in ``store/README.md`` is made from this (``python -m tests.interop.mqadmin_rows``);
``test_mqadmin`` runs each row that says *works*, with Apache's own tool, against ours.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """A command line, and a pattern that its output has."""

    line: str
    """Words; ``{name}`` is filled in by the test."""

    pattern: str


WORKS: tuple[Row, ...] = (
    Row("updateTopic -c {cluster} -t Made -r 3 -w 3 -a +message.type=NORMAL", "success"),
    Row("updateTopicList -c {cluster} -f {topics_file}", "submit batch of topic config .* success"),
    Row("updateTopicPerm -c {cluster} -t {other} -p 4", "update topic perm from 6 to 4"),
    Row("topicList", "{topic}"),
    Row("topicList -c", "{cluster} +{topic}"),
    Row("topicRoute -t {topic}", '"readQueueNums":4'),
    Row("topicStatus -t {topic}", "broker-a +3 "),
    Row("topicClusterList -t {topic}", "{cluster}"),
    Row("allocateMQ -t {topic} -i a,b", '"a":.*"queueId"'),
    Row("updateOrderConf -t {topic} -m put -v broker-a:4", "update orderConf success"),
    Row("updateSubGroup -c {cluster} -g Made", "create subscription group to .* success"),
    Row("updateSubGroupList -c {cluster} -f {groups_file}", "group config .* success"),
    Row("getConsumerConfig -g {group}", "retryMaxTimes += +16"),
    Row("setConsumeMode -c {cluster} -t {topic} -g Made -m POP -n 0", "consume mode.POP"),
    Row("clusterList", "broker-a +0 +{broker}"),
    Row("clusterList -m", "InTotalToday"),
    Row("brokerStatus -b {broker}", "putTps"),
    Row("getBrokerConfig -b {broker}", "flushDiskType += +SYNC_FLUSH"),
    Row("updateBrokerConfig -b {broker} -k traceOn -v true", "update broker config success"),
    Row("sendMsgStatus -b broker-a -c 2", "SEND_OK"),
    Row("queryMsgById -t {topic} -i {offset_id}", "{unique_id}"),
    Row("queryMsgById -t {topic} -i {offset_id} -g {group} -d {client}", "CR_SUCCESS"),
    Row("queryMsgByKey -t {topic} -k {key}", "{unique_id}"),
    Row("queryMsgByUniqueKey -t {topic} -i {unique_id}", "Tags: +.tagA"),
    Row("queryMsgByOffset -t {topic} -b broker-a -i {queue} -o {offset}", "{unique_id}"),
    Row("queryMsgTraceById -i {traced_id}", "Pub"),
    Row("printMsg -t {topic} -d true", "{unique_id}"),
    Row("printMsgByQueue -t {topic} -a broker-a -i {queue} -p true -d true", "{unique_id}"),
    Row("queryCq -t {topic} -q {queue} -i 0 -c 5 -b {broker} -g {group}", "physicOffset"),
    Row("sendMessage -t {topic} -p hello", "SEND_OK"),
    Row("consumeMessage -t {topic} -g Reader -b broker-a -i {queue} -o 0 -c 1", "Consume ok"),
    Row("checkMsgSendRT -t {topic} -a 2 -s 10", "Avg RT"),
    Row("producerConnection -g shell-producer -t {topic}", "JAVA"),
    Row("producer -b {broker}", "shell-producer"),
    Row("consumerConnection -g {group}", "CONSUME_PASSIVELY"),
    Row("consumerProgress -g {group}", "{topic} +broker-a"),
    Row("consumerProgress", "{group} +1"),
    Row("consumerStatus -g {group} -i {client}", "Consumer Properties"),
    Row("consumerStatus -g {group}", "Rebalance OK"),
    Row("consumerStatus -g {group} -i {client} -s", "Consumer jstack"),
    Row("brokerConsumeStats -b {broker}", "Diff Total"),
    Row("statsAll -t {topic}", "{topic} +{group}"),
    Row("updateSubGroup -c {cluster} -g Cloned", "create subscription group to .* success"),
    Row("cloneGroupOffset -s {group} -d Cloned -t {topic}", "clone group offset success"),
    Row("resetOffsetByTime -g Cloned -t {topic} -s 0", "broker-a +{queue} +0"),
    Row("skipAccumulatedMessage -g Cloned -t {topic}", "broker-a +{queue} +[1-9]"),
    Row("updateKvConfig -s NS -k k -v v", "create or update kv config"),
    Row("deleteKvConfig -s NS -k k", "delete kv config"),
    Row("wipeWritePerm -b broker-a", "wipe write perm of broker.broker-a. .*OK"),
    Row("addWritePerm -b broker-a", "add write perm of broker.broker-a. .*OK"),
    Row("getNamesrvConfig", "lease_ms"),
    Row("cleanExpiredCQ -b {broker}", "success"),
    Row("deleteExpiredCommitLog -b {broker}", "success"),
    Row("cleanUnusedTopic -b {broker}", "success"),
    Row("haStatus -b {broker}", "MasterCommitLogMaxOffset"),
    Row("exportMetadata -c {cluster} -f {folder}", "export .*metadata.json success"),
    Row("exportConfigs -c {cluster} -f {folder}", "export .*configs.json success"),
    Row("exportMetrics -c {cluster} -f {folder}", "export .*metrics.json success"),
    Row("createUser -c {cluster} -u alice -p secret -t Normal", "create user to .* success"),
    Row("updateUser -b {broker} -u alice -s disable", "update user to .* success"),
    Row("getUser -b {broker} -u alice", "alice +secret +Normal +disable"),
    Row("copyUser -f {broker} -t {broker} -u alice", "copy user of alice .* success"),
    Row("listUser -c {cluster} -f ali", "alice +secret"),
    Row(
        "createAcl -c {cluster} -s User:alice -r Topic:T*,Group:G -a Pub,Sub -i 10.0.0.0/8"
        " -d Allow",
        "create acl to .* success",
    ),
    Row("updateAcl -b {broker} -s User:alice -r Group:G -a Sub -d Deny", "update acl .* success"),
    Row("getAcl -b {broker} -s User:alice", "User:alice +Custom +Group:G +.*Sub.*Deny"),
    Row("copyAcl -f {broker} -t {broker} -s User:alice", "copy acl of User:alice .* success"),
    Row("listAcl -c {cluster} -s alice -r Topic", "User:alice +Custom +Topic:T[*] +.*10.0.0.0/8"),
    Row("deleteAcl -b {broker} -s User:alice -r Group:G", "delete acl to .* success"),
    Row("deleteUser -b {broker} -u alice", "delete user to .* success"),
    Row("deleteSubGroup -c {cluster} -g Made", "delete subscription group .* success"),
    Row("deleteTopic -c {cluster} -t Made", "delete topic .Made. .* success"),
)
"""Rows run in any order but the first and the last two; a command may have several."""

STATIC = "static topics: clients behind a gateway see no brokers that queues could move between"

NOT_APPLICABLE = {
    "addBroker": "brokers of a container process",
    "removeBroker": "brokers of a container process",
    "getSyncStateSet": "Apache's controller",
    "getBrokerEpoch": "Apache's controller",
    "getControllerMetaData": "Apache's controller",
    "getControllerConfig": "Apache's controller",
    "updateControllerConfig": "Apache's controller",
    "electMaster": "Apache's controller",
    "cleanBrokerMetadata": "Apache's controller",
    "resetMasterFlushOffset": "Apache's slaves",
    "switchTimerEngine": "Apache's two timer engines",
    "updateStaticTopic": STATIC,
    "remappingStaticTopic": STATIC,
    "dumpCompactionLog": "reads Apache's files",
    "exportMetadataInRocksDB": "reads Apache's files",
    "rocksDBConfigToJson": "reads Apache's files",
    "checkRocksdbCqWriteProgress": "RocksDB index",
    "exportPopRecord": "moves Apache's revive records; pops are in the log here",
    "getColdDataFlowCtrInfo": "page cache of Apache's log",
    "updateColdDataFlowCtrGroupConfig": "page cache of Apache's log",
    "removeColdDataFlowCtrGroupConfig": "page cache of Apache's log",
    "setCommitLogReadAheadMode": "page cache of Apache's log",
    "updateNamesrvConfig": "three keys are taken until the next start "
    "([namesrv](../namesrv/README.md)), others refused (16): the name server's file is its "
    "configuration",
    "startMonitoring": "never ends; asks what the rows above ask",
    "clusterRT": "never ends; sends like checkMsgSendRT",
}

MISSING: dict[str, str] = {}


def command_of(row: Row) -> str:
    return row.line.split(" ")[0]


def table() -> str:
    """The table of ``store/README.md``."""
    works = ", ".join(f"`{name}`" for name in sorted({command_of(row) for row in WORKS}))
    lines = ["| commands | |", "| --- | --- |", f"| {works} | works |"]
    for word, rows in (("not applicable", NOT_APPLICABLE), ("missing", MISSING)):
        for reason in dict.fromkeys(rows.values()):
            names = ", ".join(f"`{name}`" for name, why in sorted(rows.items()) if why == reason)
            lines.append(f"| {names} | {word}: {reason} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
