"""Copying a worker's state into its arena while it waits for others: training loses no time."""
