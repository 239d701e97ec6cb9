"""A run as it is shown: one model, made from its events, that every view reads."""
