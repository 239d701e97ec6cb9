"""Events of a small run, to be shown or summed up."""

from holdfast.observe.events import JobEnded, JobStarted, PlanChanged, Recovered, StepDone

STARTED = JobStarted(
    name="x",
    version="1",
    steps=5,
    model="llama-tiny",
    num_parameters=10,
    num_workers=2,
    micro_batches=4,
    run_dir="runs/x",
)
CHANGED = PlanChanged(
    reason="asked for",
    epoch=1,
    step=6,
    shape="1 replica x 1 stage",
    num_workers=1,
    joining=(),
    leaving=("n0.g1",),
    stall_s=0.25,
    bytes_moved=1000,
    groups_kept=2,
    groups_made=1,
    file="plans/epoch-1.toml",
)
RECOVERED = Recovered(
    reason="n0.g1 is out",
    epoch=2,
    step=6,
    shape="1 replica x 1 stage",
    num_workers=1,
    lost=("n0.g1",),
    stall_s=0.25,
    micro_batches=2,
    num_followed=0,
    file="plans/epoch-2.toml",
)
ENDED = JobEnded(outcome="finished", next_step=5, loss=1.0, seconds=9.0, reason="done")


def step(number: int, seconds: float, loss: float | None = 1.0) -> StepDone:
    return StepDone(
        step=number,
        epoch=0,
        loss=loss,
        norm=1.0,
        tokens=100,
        tokens_per_s=100 / seconds,
        step_time_s=seconds,
        learning_rate=0.1,
        applied=True,
    )
