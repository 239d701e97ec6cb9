"""Clusters of up to 100,000 devices over days of virtual time.


job, events, hazards, traces    what is simulated, and what happens to its devices
health, pace                    what is left of the cluster, and how long a step takes on it
policy, rules, peers, holdfast  what each system does about it, with its constants
planning, detection             the production planner and detector, asked from here
run, records, report            one run, what it leaves behind, in words and numbers
compare, sweep                  several policies, sizes and rates on the same failures
"""
