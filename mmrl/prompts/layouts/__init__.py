"""Layouts of data sets, one file each."""
