"""Fuzz targets. Each module runs by itself (`python -m fuzz.decoders --seconds 60`), and under atheris where it is installed."""
