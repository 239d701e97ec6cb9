"""A run directory, read into the run model."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.observe.follow import RunReader
from holdfast.observe.run.model import RunModel
from holdfast.observe.run_directory import JOURNAL, plan_name
from holdfast.plan.plan import Plan
from holdfast.plan.text import parse_plan


class RunFollower:
    """Keeps a model up to date with a run directory."""

    def __init__(self, run_dir: Path) -> None:
        if not (run_dir / JOURNAL).is_file():
            raise HoldfastError(f"{run_dir} is no run directory: there is no {JOURNAL} in it")
        self.run_dir = run_dir
        self.model = RunModel()
        self._reader = RunReader(run_dir)
        self._plans: dict[str, Plan] = {}

    def poll(self) -> bool:
        """Take in what is new; returns whether there was anything."""
        found = self._reader.read()
        for at_s, event in found:
            self.model.add(at_s, event)
        if found and (plan := self.plan(self.model.plan_file)) is not None:
            self.model.workers.expect(plan.workers, self.model.now_s)
        return bool(found)

    def plan(self, file: str) -> Plan | None:
        """A plan of the run; None where it cannot be read."""
        if file and file not in self._plans:
            try:
                self._plans[file] = parse_plan((self.run_dir / file).read_text())
            except (OSError, HoldfastError):
                return None
        return self._plans.get(file)

    def plan_of_epoch(self, epoch: int) -> Plan | None:
        return self.plan(plan_name(epoch))

    def roles(self) -> Mapping[str, str]:
        """Worker -> its role in the present plan."""
        plan = self.plan(self.model.plan_file)
        return {} if plan is None else {worker: plan.role(worker) for worker in plan.workers}


def follow_run(run_dir: Path) -> RunFollower:
    """All there is until now; `poll` reads on."""
    follower = RunFollower(run_dir)
    while follower.poll():
        pass
    return follower


def read_events(run_dir: Path) -> RunModel:
    """The model of a run that is not written to any more, without its plans."""
    model, reader = RunModel(), RunReader(run_dir)
    for _ in range(2):
        for at_s, event in reader.read():
            model.add(at_s, event)
    return model
