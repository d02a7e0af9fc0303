"""Layouts of data sets, one file each, and what they share."""
