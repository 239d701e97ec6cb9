"""When a step is longer than predicted and no verdict says why: which workers to ask."""

from collections.abc import Sequence

from holdfast.detect.localize import Moment, Suspect, find_suspects
from holdfast.detect.predict import Predictor
from holdfast.detect.probe import Pair, order_probe
from holdfast.detect.verdict import SUSPECT, Verdict, name_some, path_name, percent
from holdfast.plan.groups import transfers

POOR = 4.0
"""A best explanation that misses by more than so many times the noise explains nothing."""


def suspicion(
    predictor: Predictor,
    moments: Sequence[Moment],
    *,
    factor: float,
    noise: float,
    step: int,
    lanes: bool,
    paths: bool,
) -> Verdict:
    """`lanes` and `paths`: may they be suspected, or have they already shown that they are fine?"""
    suspects = find_suspects(predictor, moments, noise, lanes=lanes, paths=paths)
    over = f"step {step} takes {factor:.2f} times as long as predicted"
    if not suspects or suspects[0].misfit > POOR:
        return Verdict(
            kind=SUSPECT,
            who=(),
            factor=factor,
            confidence=0.0,
            step=step,
            reason=f"{over}, and no single slow worker or link explains it: look at data loading, "
            f"reductions and storage",
        )
    workers = [w for s in suspects if len(s.lanes) == 1 for w in predictor.layout.lanes[s.lanes[0]]]
    pairs = [pair for s in suspects if len(s.lanes) == 2 for pair in lane_pairs(predictor, s.lanes)]
    others = [w for w in predictor.layout.plan.workers if w not in workers]
    best = suspects[0]
    return Verdict(
        kind=SUSPECT,
        who=(*workers, *(path_name(pair) for pair in pairs)),
        factor=best.factor,
        confidence=best.probability,
        step=step,
        reason=f"{over}; best explained by {_words(predictor, best)} ({percent(best.probability)}, "
        f"{len(suspects)} candidates)",
        probe=order_probe(workers, pairs, others),
    )


def lane_pairs(predictor: Predictor, lanes: Sequence[int]) -> list[Pair]:
    """The pairs of workers behind a link of two lanes."""
    chosen = set(lanes)
    program = predictor.program
    for number, ends in enumerate(program.channel_lanes):
        if {lanes[0] for lanes in ends} == chosen:
            return transfers(*program.ends(number))
    return []


def _words(predictor: Predictor, suspect: Suspect) -> str:
    if len(suspect.lanes) == 1:
        workers = predictor.layout.lanes[suspect.lanes[0]]
        return f"{name_some(workers)} computing {suspect.factor:.2f} times as long"
    pairs = tuple(path_name(pair) for pair in lane_pairs(predictor, suspect.lanes))
    return f"{name_some(pairs)} taking {suspect.factor:.2f} times as long"
