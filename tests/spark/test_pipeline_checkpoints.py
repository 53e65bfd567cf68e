"""Which folder of a pipeline's checkpoint is whose, and what is counted while it runs. Without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orbitmq.errors import ConfigError
from orbitmq.spark.pipeline_checkpoints import checkpoint_folders, folder_of, labels
from orbitmq.spark.pipeline_counts import PipelineSummary, ProgressCount, SinkCount
from orbitmq.spark.pipeline_file import Sink

FILES = Sink(table="clean", format="parquet", path="out")
OTHER_FILES = Sink(table="clean", format="parquet", path="elsewhere")
SCREEN = Sink(table="clean", format="console")
TOPIC = Sink(table="large", format="rocketmq", options={"Topic": "Large"})
OWN = folder_of(FILES)


def test_a_sink_keeps_its_folder_wherever_it_stands_in_the_file() -> None:
    first = checkpoint_folders([FILES, TOPIC], [])
    assert first[0].startswith("clean-parquet-")
    assert first[1].startswith("large-rocketmq-")
    for sinks in ([TOPIC, FILES], [SCREEN, FILES], [SCREEN, TOPIC, FILES]):
        assert dict(zip(sinks_as_texts(sinks), checkpoint_folders(sinks, first), strict=True))[str(FILES)] == first[0]
    same_place = Sink(table="clean", format="parquet", path="out/", options={"compression": "gzip"})
    assert folder_of(same_place) == OWN, "options say how, not where"
    assert folder_of(Sink(table="large", format="rocketmq", options={"topic": "Small"})) != folder_of(TOPIC)
    assert len({folder_of(one) for one in (FILES, OTHER_FILES, SCREEN, TOPIC)}) == 4


def sinks_as_texts(sinks: list[Sink]) -> list[str]:
    return [str(sink) for sink in sinks]


def test_folders_by_place_in_the_file_are_found_where_they_can_be_of_one_sink_only() -> None:
    assert checkpoint_folders([FILES, TOPIC], ["0-clean", "1-large"]) == ["0-clean", "1-large"]
    assert checkpoint_folders([TOPIC, FILES], ["0-clean", "1-large"]) == ["1-large", "0-clean"], (
        "they have changed places"
    )
    assert checkpoint_folders([FILES], [OWN, "0-clean"]) == [OWN], "it has begun by its own name since"


@pytest.mark.parametrize(
    ("sinks", "there"),
    [
        ([SCREEN, FILES], ["0-clean"]),  # another sink of the table came: whose was it?
        ([FILES, OTHER_FILES], ["0-clean", "1-clean"]),
        ([FILES], ["0-clean", "2-clean"]),
        ([OTHER_FILES], [OWN]),  # the rows go elsewhere now
        ([Sink(table="clean", format="parquet", path="out", name="bills")], [OWN]),  # it has got a name
    ],
)
def test_no_sink_begins_anew_while_a_folder_may_be_its_own(sinks: list[Sink], there: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=r'has no checkpoint yet, and no sink has.*name = "(0-clean|clean-parquet-\w+)"'
    ):
        checkpoint_folders(sinks, there)


def test_a_name_says_which_folder_it_is() -> None:
    named = Sink(table="clean", format="parquet", path="out", name="0-clean")
    assert checkpoint_folders([SCREEN, named], ["0-clean"]) == [folder_of(SCREEN), "0-clean"]
    moved = Sink(table="clean", format="parquet", path="elsewhere", name=OWN)
    assert checkpoint_folders([moved], [OWN]) == [OWN]
    anew = Sink(table="clean", format="parquet", path="elsewhere", name="anew")
    assert checkpoint_folders([anew], [OWN, "0-clean"]) == ["anew"]


def report(batch: int, rows: int, **unmet: int) -> Any:
    metrics = {name: {"unmet": count} for name, count in unmet.items()}
    return SimpleNamespace(batchId=batch, timestamp=f"t{batch}", numInputRows=rows, observedMetrics=metrics)


def test_reports_are_added_up_each_once_beyond_the_hundred_that_spark_keeps() -> None:
    every = [report(number, 10, expect_0=1, expect_1=3, of_a_transform=7) for number in range(250)]
    count = ProgressCount("clean", whole_tables=[1])
    count.add([])
    assert not count.is_news(None)
    assert count.is_news(every[0])
    for until in (1, 1, 60, 160, 250, 250):
        count.add(every[max(0, until - 100) : until])
    assert (count.count.rows, count.count.unmet) == (2500, {0: 250, 1: 3})
    assert not count.is_news(every[-1])


def test_a_rule_is_told_once_for_all_sinks_unless_they_differ() -> None:
    sinks = [SinkCount("a", rows=5, unmet={0: 2}), SinkCount("b", "written", 1234, {0: 2}), SinkCount("c", rows=None)]
    assert PipelineSummary(["x > 0", "never asked"], sinks).lines() == [
        "a: 5 rows read",
        "b: 1,234 rows written",
        "not met by 2 rows: x > 0",
    ]
    sinks[1].unmet[0] = 7
    assert PipelineSummary(["x > 0"], sinks).lines()[2:] == [
        "not met by 2 rows on their way to a: x > 0",
        "not met by 7 rows on their way to b: x > 0",
    ]


def test_sinks_are_called_by_what_tells_them_apart() -> None:
    named = Sink(table="clean", format="csv", path="c", name="copy")
    assert labels([FILES, TOPIC]) == ["clean", "large"]
    assert labels([FILES, OTHER_FILES, named]) == ["clean (parquet out)", "clean (parquet elsewhere)", "copy"]
