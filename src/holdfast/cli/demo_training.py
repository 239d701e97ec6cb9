"""The training of `holdfast demo`: eight processes, four plans, one falling loss."""

import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.cli.plan_show import make_console, print_json
from holdfast.cli.run_job import progress_on
from holdfast.cli.what_if import lose_workers
from holdfast.engine.optimizer_config import OptimizerConfig
from holdfast.engine.reports import Planned
from holdfast.job.config import DataSection, JobConfig, JobSection
from holdfast.job.jobs import Job
from holdfast.job.launcher import RunResult, run_job
from holdfast.job.prepare import make_job, model_units
from holdfast.observe.events import Event, PlanChanged, WorkersReady
from holdfast.observe.progress import after_steps, describe_report
from holdfast.observe.timeline_terminal import Look, chart, look_of
from holdfast.observe.timeline_view import Notes, View, view_of
from holdfast.plan.build import regular_plan
from holdfast.plan.plan import Plan, Stage
from holdfast.plan.profile import Profile, UnitCost
from holdfast.plan.timeline import evaluate

NUM_STEPS = 24
MICRO_BATCHES = 4
LOST = "r1.s1"
COST = UnitCost(1.0, 1.0, 1.0)
"""For the pictures: forward 1, backward 2."""
BAR_WIDTH = 48


class Act(msgspec.Struct, frozen=True):
    """A plan, from which step on it runs, and what to say about it."""

    at_step: int
    title: str
    note: str
    plan: Plan
    lost: tuple[Stage, ...] = ()


def acts(config: JobConfig) -> list[Act]:
    units = model_units(config)
    whole = regular_plan(units, replicas=2, stages=2, tensor=2, micro_batches=MICRO_BATCHES)
    rerouted, lost = lose_workers(whole, [LOST])
    deep = regular_plan(units, replicas=2, stages=4, micro_batches=MICRO_BATCHES)
    return [
        Act(0, "2 replicas x 2 stages x tensor 2, on 8 processes", "", whole),
        Act(
            6,
            f"{LOST} leaves with its 2 workers, its micro-batches pass r0.s1",
            f"without {LOST}",
            rerouted,
            lost,
        ),
        Act(
            12,
            "its workers are back, and all are arranged anew: 2 replicas x 4 stages",
            "2 replicas x 4 stages",
            deep,
        ),
        Act(18, "2 replicas x 2 stages x tensor 2 again", "as at first", whole),
    ]


def demo_config() -> JobConfig:
    return JobConfig(
        job=JobSection(steps=NUM_STEPS, name="demo", verify=True),
        data=DataSection(rows=4, seq_len=32, micro_batches=MICRO_BATCHES),
        optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=2),
    )


def demo_job(config: JobConfig) -> tuple[Job, list[Act]]:
    story = acts(config)
    return make_job(config, [Planned(act.at_step, act.plan) for act in story]), story


def train(*, as_json: bool) -> int:
    job, story = demo_job(demo_config())
    if as_json:
        result = run_job(job)
        print_json(result.report)
        return result.exit_code
    console = make_console()
    with progress_on(console) as progress:
        teller = _Teller(story, console)

        def on_event(event: Event) -> None:
            progress(event)
            teller.hear(event)

        result = run_job(job, on_event=on_event)
    _conclude(result, story, console)
    return result.exit_code


class _Teller:
    """Draws every plan when it begins."""

    def __init__(self, story: list[Act], console: Console) -> None:
        self._story, self._console = story, console
        self._views = [_view(act) for act in story]
        self._look = look_of(console, *self._views)
        self._num_drawn = 0

    def hear(self, event: Event) -> None:
        match event:
            case WorkersReady():
                self._draw(0)
            case PlanChanged():
                self._draw(self._num_drawn)

    def _draw(self, number: int) -> None:
        self._num_drawn = number + 1
        act, view = self._story[number], self._views[number]
        self._console.print()
        when = f"{after_steps(act.at_step).capitalize()}: " if act.at_step else ""
        self._console.print(Text(when + act.title, style="bold"))
        self._console.print(chart(view, _scaled(self._look, view, self._views)))
        self._console.print()


def _view(act: Act) -> View:
    timeline = evaluate(act.plan, Profile(worker=COST))
    return view_of(timeline, Notes(max_rows=8, lost=act.lost))


def _scaled(look: Look, view: View, views: list[View]) -> Look:
    """One scale for all pictures, so that a longer step is longer to the eye, too."""
    longest = max(other.end for other in views)
    return msgspec.structs.replace(look, width=int(look.width * view.end / longest))


def _conclude(result: RunResult, story: list[Act], console: Console) -> None:
    """The loss as bars, and where the plan changed."""
    notes = {act.at_step: act.note for act in story[1:]}
    top = max((loss for loss in result.losses if loss is not None), default=1.0)
    console.print()
    console.print(Text("Loss by step", style="bold"))
    for step in result.steps:
        loss = step.loss if step.loss is not None else top
        bar = "▇" * round(BAR_WIDTH * loss / top) if _is_unicode(console) else ""
        note = f"  {notes.get(step.step, '')}"
        console.print(Text(f"{step.step + 1:3d} {loss:7.4f} {bar:<{BAR_WIDTH}}{note}".rstrip()))
    console.print()
    console.print(Text(describe_report(result.report)))
    console.print(f"Everything about it is in {result.report.run_dir}")


def _is_unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")
