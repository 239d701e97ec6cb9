"""Which plan to run after a change of health, and why.

    decision                        all strategies, one cost model, one score, a verdict for each
    strategies/                     what may be done about dead and slow workers, one file each
    search_view, pipelines, health  what strategies look at, and the sketches they propose
    score, candidate, lookahead
                                    what a change costs, what a plan is worth until the next one
    seat_assignment, local_search   the winner improved: fewer bytes moved, single units moved
    initial_layout, hardware        where a job without a plan or a measurement begins
    peers/                          how nine published systems would choose, on the same cost model

Step time has one definition, `plan.timeline`, and one computation per purpose; tests hold each
against the definition on random plans:

    plan.timeline                   any plan, every computation: pictures, checks, dry run
    step_cost                       a sketch of separate pipelines: hundreds per decision
      pipeline_time                 its pipelines, each kind once
      allreduce_timeline            its reductions, equal stages counted
    crossing_routes                 a plan of which one part has crossing routes, beside a sketch
    schedule.*.chain_estimate       one pipeline by formula: ranks thousands, decides nothing
    minimax_shares, footprint       exact shares of units and micro-batches, within memory
    detect.pace                     one plan, many steps at once, for the detector

The simulator of clusters has no times of its own: it asks `step_cost`.
"""
