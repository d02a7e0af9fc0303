"""Metrics, trackers, pictures and the report of a run."""
