"""The suite that measures mmrl on a GPU: `python -m benchmarks.gpu`, see `__main__.py`."""
