"""Nine published systems, each described once: its rule, source, constants and limits.

    rules     how each chooses, as proposals on the planner's search view
    system    what a description says, and the constants that the simulator takes from it
    systems   the nine descriptions
    answers   what a system would do in a situation, priced with the planner's cost model

`bench/planner.py` compares their plans with the planner's, `sim/cluster` their goodput over days.
"""
