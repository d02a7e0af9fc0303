"""Parsers of the texts that models write: answers, coordinates, actions."""
