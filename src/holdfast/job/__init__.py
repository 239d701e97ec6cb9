"""Puts the processes together: job files, workers, the wire between them."""
