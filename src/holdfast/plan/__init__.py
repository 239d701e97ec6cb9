"""The plan as a value: what runs where, which worker holds what, how long a step takes.

    plan, units, workers            the value itself
    build, model_catalog            regular plans; models by name
    text, text_*                    its text form
    groups, holders, copies, lanes  what follows from it: groups, holders of every slice, lanes
    profile, timeline, step_epilogue, memory
                                    costs as data; how long a step takes; what it needs
    actions, action_lists, exchanges
                                    what every worker does, in order
    check, dry_run, parts           is it complete, does it fit, can it be executed to its end?
    transition, transfer_rounds, without_workers
                                    from one plan to another

The timeline is the definition of step time: all faster computations of it (`planner`, `schedule`,
`detect`) are tested against it.
"""
