"""The rules of the protocol, each of which can be switched off: to show that it is needed.

A job runs with all of them. The fuzzer switches one off and has to find a run that breaks a
promise; a rule that nothing misses would be a rule nobody needs.
"""

import msgspec


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    confirm: bool = True
    """The agreement is entered only when all own results are complete. Off: when the own share is
    handed in.
    """
    freeze: bool = True
    """Who has reported does nothing more in any older epoch."""
    exact_sets: bool = True
    """Sums are told addend by addend. Off: a micro-batch counts as done when its last addend is."""
    outcome_record: bool = True
    """Who follows uses the outcome of those who applied. Off: it computes its own."""
    fresh_numbers: bool = True
    """No number is used twice. Off: numbers of changes that came to nothing are."""
    joiner_versions: bool = True
    """A joiner's unit has a version. Off: what has arrived counts as current."""
    discard_joiners: bool = True
    """A recovery throws away what a joiner has fetched."""
    level_restart: bool = True
    """A restarted coordinator acts on everybody's state. Off: it waits for events."""
    redo_verdict: bool = True
    """A journaled verdict without an order that carries it out starts a round."""
    journal_first: bool = True
    """What is sent was made durable before."""
    lineage: bool = True
    """Snapshots of a history that was given up are not used."""
    final_rollback: bool = True
    """A rollback that not everybody has entered is ordered again for all."""
    proof: bool = True
    """Nothing is decided while all members of an epoch may be alive and unaware of it."""
    fixed_target: bool = True
    """What a step comes to in mode `fast` is decided once."""
    incarnations: bool = True
    """A name started again is somebody else."""
    one_planned: bool = True
    """A change is given up by everybody before the next one is ordered."""
    late_void: bool = True
    """A vote that was given is not taken back: the void is confirmed after the agreement."""
    keep_before: bool = True
    """The state before a change is kept until everybody has entered the change."""
    heard_first: bool = True
    """No change while a member has not been heard in the last order."""
    decide_all: bool = True
    """A round is decided when all its members have answered. Off: when those of the last order
    have, whoever else is in a planned change.
    """
