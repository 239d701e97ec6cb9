"""The planner beside the job, as bad as it can be: any plan for the workers of the question, in
time, late, never, twice, or as an error; now and then an answer to a question of long ago.
"""

from random import Random
from typing import TYPE_CHECKING

from holdfast.control.facts import PlanAnswered, WorkerSlow
from holdfast.control.plan_question import PlanAnswer, PlanOption, PlanQuestion
from holdfast.errors import HoldfastError
from holdfast.plan.check import check_plan
from holdfast.plan.copies import num_copies
from holdfast.plan.plan import Plan
from holdfast.plan.text import format_plan, parse_plan
from holdfast.sim.fuzz.shapes import draw_layout

if TYPE_CHECKING:
    from holdfast.sim.fuzz.world import World

MAX_SLOW, SLOW_UNTIL_MS = 5, 800
"""Verdicts that a worker is slow, and until when they come."""
NUM_DRAWN = 8
"""Attempts to draw a plan that passes the checks of any plan."""


class SimulatedPlanner:
    def __init__(self, world: "World", seed: int) -> None:
        rng = Random(seed)
        self._world, self._rng = world, rng
        self._asked: list[PlanQuestion] = []
        if world.settings.replan.policy == "auto":
            for _ in range(rng.randint(0, MAX_SLOW)):
                world.clock.at(rng.randint(60, SLOW_UNTIL_MS), self._judge)

    def _judge(self) -> None:
        """A worker is said to be slow, or well again."""
        rng, world = self._rng, self._world
        names = [name for places in world.shape.places.values() for name in places]
        worker, factor = rng.choice(names), rng.choice((1.0, 2.0, 3.0))
        if not world.is_calm:
            world.count("slow workers", int(factor > 1))
            world.coordinator.take(WorkerSlow(worker, factor))

    def ask(self, question: PlanQuestion) -> None:
        rng, clock = self._rng, self._world.clock
        self._world.count("planner asked")
        self._asked.append(question)
        if not self._world.is_calm and rng.random() < 0.1:
            return
        answer = self._answer(question)
        clock.after(rng.choice((0, 5, 30, 200)), self._say, answer)
        if rng.random() < 0.2:
            clock.after(rng.choice((1, 50, 300)), self._say, answer)
        if rng.random() < 0.1:
            clock.after(rng.choice((1, 50, 300)), self._say, self._answer(rng.choice(self._asked)))

    def _answer(self, question: PlanQuestion) -> PlanAnswer:
        rng = self._rng
        if rng.random() < 0.1:
            return PlanAnswer(number=question.number, error="its process ended")
        plan = self._plan(question)
        option = PlanOption(
            strategy="any", reason="drawn", step_s=rng.choice((0.01, 0.5)), copies=num_copies(plan)
        )
        return PlanAnswer(
            number=question.number,
            plan=format_plan(plan),
            chosen=option,
            now_step_s=0.5,
            now_copies=rng.choice((0, 1)),
            rounds=1,
        )

    def _plan(self, question: PlanQuestion) -> Plan:
        """For some of the workers that are there; where none is found, the plan in force."""
        rng, home = self._rng, parse_plan(question.home)
        is_whole = all(worker in question.available for worker in home.workers)
        if is_whole and rng.random() < 0.3:
            return home
        for _ in range(NUM_DRAWN):
            try:
                plan = draw_layout(rng, home, list(question.available))
                check_plan(plan)
            except HoldfastError:
                continue
            return plan
        return parse_plan(question.now)

    def _say(self, answer: PlanAnswer) -> None:
        self._world.coordinator.take(PlanAnswered(answer))
