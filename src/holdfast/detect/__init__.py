"""Telling slow devices from heavy work, and hung ones from slow ones. Pure: facts in, verdicts
out.
"""
