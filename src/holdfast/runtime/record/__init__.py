"""What a run leaves behind: run log, step aggregation, profile, final state."""
