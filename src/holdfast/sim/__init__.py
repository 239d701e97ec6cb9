"""Clusters of any size in virtual time: failures in, decisions and goodput out."""
