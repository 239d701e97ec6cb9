"""The job file and its settings."""
