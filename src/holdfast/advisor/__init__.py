"""The planner beside a running job: it answers the coordinator's questions, and decides nothing."""
