"""The worker process around the engine."""
