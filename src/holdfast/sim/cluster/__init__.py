"""Clusters of up to 100,000 devices over days of virtual time: failures in, goodput out.

job, events, hazards, traces    what is simulated, and what happens to its devices
health                          what is left of the cluster
planning                        how long a step then takes: the planner's cost model, asked
policy, rules, peers, holdfast  what each system does about it (descriptions: planner/peers)
detection                       how long Holdfast takes to notice: the detector, asked
run, records, report            one run, what it leaves behind, in words and numbers
compare, sweep                  several policies, sizes and rates on the same failures
"""
