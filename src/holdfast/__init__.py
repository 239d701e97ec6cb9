"""Holdfast keeps hybrid-parallel LLM training running while parts of the cluster fail under it."""

__version__ = "0.1.0"
