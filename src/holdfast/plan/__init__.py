"""The plan as data: what runs where, in which order, how long it takes, and how to get from one
to the next.
"""
