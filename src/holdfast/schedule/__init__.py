"""Schedules: in which order every worker computes. A new schedule is one file and one line.

rule            what a schedule has to say, and what it may say besides
gpipe, one_f_one_b, interleaved, zero_bubble, explicit
                one schedule each: its order, what it keeps in flight, its closed forms
registry        the list of them, and `rule_of(name)`, by which all other packages ask
chain, rounds   the regular part of a plan, and orders over it that several schedules share
list_scheduler  an order for any irregular part, found by playing the step through once
orders          the order of every lane of a plan: by the schedule's rule, or by list scheduling
"""
