"""The control plane under every kind of failure, by seeds."""
