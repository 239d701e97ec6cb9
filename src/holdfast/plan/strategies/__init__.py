"""Strategies: each a function from a view of the situation to proposals, in files by what they
change.
"""
