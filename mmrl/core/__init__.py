"""Contracts between the parts of mmrl, what flows between them, and the numerics that they share."""
