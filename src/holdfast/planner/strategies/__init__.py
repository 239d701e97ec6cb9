"""Strategies: functions from a view of the situation to proposals, one file per kind of change."""
