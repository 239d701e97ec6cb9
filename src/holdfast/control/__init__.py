"""Decisions of the control plane: facts in, orders and reasons out."""
