"""From a job file to running processes."""
