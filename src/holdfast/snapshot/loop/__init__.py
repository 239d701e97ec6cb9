"""Snapshots in any PyTorch training loop, without the rest of Holdfast."""
