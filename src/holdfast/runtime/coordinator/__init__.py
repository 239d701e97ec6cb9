"""The coordinator process around the machine in `control/`."""
