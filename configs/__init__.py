"""Shipped run configs, one YAML file each, as package data."""
