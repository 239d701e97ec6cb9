"""The pure packages in simulated worlds: `fuzz` (protocol, by seeds) and `cluster` (goodput)."""
