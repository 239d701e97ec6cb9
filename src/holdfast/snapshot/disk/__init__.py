"""Persistent checkpoints: directories that plain DCP reads, written from committed versions."""
