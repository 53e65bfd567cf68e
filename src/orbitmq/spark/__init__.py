"""The data pipeline on Spark: topics and stores as tables. Needs `pip install "orbitmq[spark]"`."""
