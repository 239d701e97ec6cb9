"""Schedules: in which order every worker computes."""
