"""What a running job is answered on random cells: by the advisor, with the options and within the
time that a job gives it.

These differ from what the other tables measure: the schedule stays, whole tensor groups are not
cut anew, two copies of everything are kept where there are two, a plan is checked, and the search
ends after `ReplanSettings.search_s` (here of processor time, so that other work on the machine does
not count). The plan in force is what the loss of the dead workers leaves. Cells where no stage that
is left can take the work over are left out: such a job goes back to a snapshot first.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import process_time

import msgspec

from _common import print_table
from _random_cells import random_cells
from _small_cases import SMALL, make_oracle, oracle_time, small_cells
from holdfast.advisor.answer import answers
from holdfast.control.plan_question import PlanAnswer, PlanQuestion
from holdfast.control.settings import ReplanSettings
from holdfast.errors import HoldfastError
from holdfast.plan.copies import num_copies
from holdfast.plan.lanes import layout_of
from holdfast.plan.plan import Plan
from holdfast.plan.profile import Profile
from holdfast.plan.text import format_plan, parse_plan
from holdfast.plan.timeline import evaluate
from holdfast.plan.without_workers import without_workers
from holdfast.planner.health import Health
from holdfast.planner.peers.answers import peer_answers
from holdfast.planner.peers.systems import PEERS
from holdfast.planner.search_view import SearchView
from holdfast.planner.step_cost import CostModel
from holdfast.schedule.orders import compute_orders

SETTINGS = ReplanSettings()
ANY_SCHEDULE = ("1f1b", "zero-bubble")


@dataclass
class Regrets:
    """How much longer steps are than those of another plan, cell by cell."""

    found: list[tuple[float, str]] = field(default_factory=list)

    def add(self, ours_s: float, theirs_s: float, name: str) -> None:
        self.found.append((ours_s / theirs_s - 1, name))

    def row(self, beside: str) -> dict[str, object]:
        return {
            "beside": beside,
            "cells": len(self.found),
            "over 0.5 %": sum(regret > 0.005 for regret, _ in self.found),
            "mean %": 100 * statistics.mean(regret for regret, _ in self.found),
            "worst %": 100 * max(self.found)[0],
            "worst cell": max(self.found)[1],
        }


@dataclass
class Answered:
    """What the searches took, in milliseconds of processor time."""

    first_ms: list[float] = field(default_factory=list)
    num_unfinished: int = 0
    num_errors: int = 0

    def best(self, question: PlanQuestion) -> PlanAnswer | None:
        """The one that is there when the time is up; in any case the first."""
        begin = process_time()
        best: PlanAnswer | None = None
        for answer in answers(question):
            took_s = process_time() - begin
            if best is None:
                self.first_ms.append(1e3 * took_s)
            if best is None or took_s <= question.search_s:
                best = answer
            if took_s >= question.search_s:
                self.num_unfinished += 1
                break
        if best is not None and best.error:
            self.num_errors += 1
        return best if best is not None and best.plan else None


def compare_as_a_job_asks(seed: int, count: int, measured: dict[str, object]) -> None:
    """Printed, without a goal: a peer that may change the schedule, or keep one copy, has more
    freedom than a running job.
    """
    answered = Answered()
    rows = [*_beside_peers(seed, count, answered), *_beside_oracle(seed, count, answered)]
    worst = {str(row["beside"]): row.pop("worst cell") for row in rows}
    title = f"As a job asks, within {SETTINGS.search_s:g} s, seed {seed}: how much longer a step is"
    print_table(title, rows)
    for beside, cell in worst.items():
        print(f"worst beside the {beside}: {cell}")
    print(
        f"first answer after {statistics.median(answered.first_ms):.0f} ms (median), at most "
        f"{max(answered.first_ms):.0f} ms; searches that their time ended: "
        f"{answered.num_unfinished} of {len(answered.first_ms)}; without a plan: "
        f"{answered.num_errors}"
    )
    measured["as_a_job"] = {"seed": seed, "rows": rows, "worst": worst,
                            "first_ms": answered.first_ms}  # fmt: skip


def _beside_peers(seed: int, count: int, answered: Answered) -> list[dict[str, object]]:
    alike, same, free = Regrets(), Regrets(), Regrets()
    for cluster, situation, plan, health, profile in random_cells(seed, count):
        ours = _answered(plan, health, profile, answered)
        if ours is None:
            continue
        name, kept = f"{cluster}, {situation}", min(num_copies(ours), num_copies(plan), 2)
        for regrets, copies, schedules in (
            (alike, kept, (plan.schedule.kind,)),
            (same, 1, (plan.schedule.kind,)),
            (free, 1, ANY_SCHEDULE),
        ):
            theirs_s = _best_peer_s(plan, health, profile, schedules, copies)
            if theirs_s is not None:
                regrets.add(_step_s(ours, health, profile), theirs_s, name)
    return [
        alike.row("best peer, same schedule and copies"),
        same.row("best peer, same schedule"),
        free.row("best peer, any schedule"),
    ]


def _beside_oracle(seed: int, count: int, answered: Answered) -> list[dict[str, object]]:
    same, free = Regrets(), Regrets()
    oracles = [
        (same, make_oracle(wide=True, schedules=("1f1b",))),
        (free, make_oracle(wide=True)),
    ]
    for name, plan, health in small_cells(seed, count):
        ours = _answered(plan, health, SMALL, answered)
        ours_s = _step_s(ours, health, SMALL) if ours is not None else 0.0
        for regrets, oracle in oracles if ours is not None else ():
            regrets.add(ours_s, oracle_time(oracle, plan, health, [ours_s]), name)
    return [same.row("wide oracle, same schedule"), free.row("wide oracle, any schedule")]


def _answered(plan: Plan, health: Health, profile: Profile, answered: Answered) -> Plan | None:
    question = _question(plan, health, profile)
    answer = answered.best(question) if question is not None else None
    return parse_plan(answer.plan) if answer is not None else None


def _step_s(plan: Plan, health: Health, profile: Profile) -> float:
    """In the order in which workers do it."""
    slow = {worker: factor for worker, factor in health.slow if worker in plan.seats}
    costs = msgspec.structs.replace(profile, slow=slow)
    return evaluate(plan, costs, compute_orders(layout_of(plan))).iteration_time


def _question(plan: Plan, health: Health, profile: Profile) -> PlanQuestion | None:
    """As a job asks after the first change of its health. It has measured what the profile says."""
    try:
        now, _ = without_workers(plan, health.dead)
    except HoldfastError:
        return None
    return PlanQuestion(
        number=1,
        epoch=1,
        reason="a random cell",
        now=format_plan(now),
        home=format_plan(plan),
        available=tuple(w for w in plan.workers if w not in health.gone),
        health=health,
        profile=profile,
        paced=format_plan(plan),
        pace_s=_step_s(plan, health, profile),
        horizon_s=SETTINGS.change_s,
        prepare_s=SETTINGS.prepare_s,
        stall_s=SETTINGS.stall_s,
        lasts=SETTINGS.lasts,
        search_s=SETTINGS.search_s,
    )


def _best_peer_s(
    plan: Plan, health: Health, profile: Profile, schedules: Sequence[str], copies: int
) -> float | None:
    """Of all that they propose with so many copies."""
    view = SearchView(plan, health, CostModel(plan, profile), schedules)
    found = [answer for peer in PEERS for answer in peer_answers(peer, view)]
    return min((a.step_time for a in found if a.copies >= copies), default=None)
