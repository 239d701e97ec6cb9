"""What does a fault cost, with real processes and real signals, beside torchft on the same machine?

Both train the same Llama on the same data in replicas of one worker each, by default settings. Ours
is a job as `holdfast run` runs it; torchft (nightly) is used as its documentation says: a
lighthouse, managers, its DDP and optimizer wrappers, gloo. The two take turns.

    kill      kill -9 of a replica at a random moment of a step; a new one is started at once
    slow heal the same, with the transfer of the state to the new one slowed by 5 s
    hang      SIGSTOP of a replica
    uneven    every tenth step takes five times as long: no worker may be declared hung

Times: from the signal to the survivors' next commit under a membership without the victim; from the
start of the new process to the first commit with all workers (for torchft also without its imports:
ours come from a warm fork server); and by how much the survivors' longest step stands out while the
new one heals, more than the longest of a calm time. The bound for a stopped process: the floor of
the hang watch, two heartbeats, and what a kill may take.

Goals, for every model and number of replicas R, T being the time of a step before the fault; the
median's upper bound (95 %) counts:
    kill to next commit         at most T x (1 + 1 / (R - 1)) + 0.3 s
    steps discarded             0
    start to full membership    below 1 s (1M parameters)
    extra stall, slow heal      below 10 % of T, plus the A/A band: the same of two calm times
    hang to next commit         within the bound
    false verdicts              0
Without torchft ours is measured alone. Its own numbers decide nothing.
"""

import itertools
import math
import signal
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import _torchft
from _common import Goal, console, finish, median_bounds, parse_args, print_table
from _jobs import (
    SIZES,
    Outcome,
    Record,
    Size,
    Strikes,
    discarded,
    make_job,
    outcomes,
    rotated,
    run_with_strikes,
    uneven_run,
    verdicts,
)
from holdfast.runtime.config.recovery_sections import RecoverySection
from holdfast.runtime.launch.fork_server import ForkServer

SLOW_FACTOR, SLOW_EVERY = 5, 10
BEYOND_S = 0.3
"""What a fault may cost beyond the work that is lost."""


@dataclass(frozen=True)
class Amount:
    """How much of everything, in one round."""

    rounds: int
    kills: int
    heals: int
    slow_s: float
    hangs: int
    uneven_steps: int
    theirs: _torchft.Faults


FULL = Amount(
    rounds=1,
    kills=6,
    heals=8,
    slow_s=5.0,
    hangs=2,
    uneven_steps=40,
    theirs=_torchft.Faults(kills=1, slow_s=5.0, hangs=1, calm=6, cap_s=75.0),
)
QUICK = Amount(
    rounds=1,
    kills=5,
    heals=3,
    slow_s=3.0,
    hangs=1,
    uneven_steps=20,
    theirs=_torchft.Faults(kills=0, slow_s=3.0, hangs=0, calm=4, cap_s=25.0),
)
CALM = 6
"""Steps with every worker there between two faults."""
MICRO_BATCHES = {3: 6, 5: 10}
PATIENCE_S = 120.0
"""For one fault, on a busy machine, too."""


@dataclass
class Found:
    """What was seen of one system for one model and number of replicas."""

    kills: list[Outcome] = field(default_factory=list)
    heals: list[Outcome] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    hangs: list[Outcome] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    healed_bytes: int = 0
    num_false: int = 0
    unevenness: float = math.nan
    """How many times longer the slow steps of the uneven run were."""


class Case:
    """One model with one number of replicas."""

    def __init__(self, name: str, replicas: int, amount: Amount, fork_server: ForkServer) -> None:
        self.name, self.replicas, self.amount, self._fork_server = (
            name,
            replicas,
            amount,
            fork_server,
        )
        self.size: Size = SIZES[name].with_micro_batches(MICRO_BATCHES[replicas])
        self.ours, self.theirs = Found(), Found()

    @property
    def title(self) -> str:
        return f"{self.name} x {self.replicas}"

    def run(self, contenders: Sequence[str]) -> None:
        for number, order in enumerate(rotated(contenders, self.amount.rounds)):
            for name in order:
                if name == "ours":
                    self._run_ours(number)
                else:
                    self._run_theirs(number)
        self._run_uneven()

    # Ours.

    def _run_ours(self, seed: int) -> None:
        amount, found = self.amount, self.ours
        record = self._strike(amount.kills, signal.SIGKILL, seed)
        found.kills += outcomes(record, CALM)
        found.cpu_s.append(record.cpu_s)
        found.healed_bytes = max(kill.healed_bytes for kill in found.kills)
        recovery = slowed(self, amount.slow_s)
        record = self._strike(amount.heals, signal.SIGKILL, seed, recovery)
        found.heals += outcomes(record, CALM)
        record = self._strike(amount.hangs, signal.SIGSTOP, seed)
        found.hangs += outcomes(record, CALM)

    def _strike(
        self, number: int, kind: int, seed: int, recovery: RecoverySection | None = None
    ) -> Record:
        strikes = Strikes(self._fork_server, number=number, kind=kind, calm=CALM, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            job = make_job(self.size, self.replicas, Path(folder) / "run", recovery=recovery)
            record = run_with_strikes(job, strikes, self._fork_server, PATIENCE_S * (1 + number))
        if record.why_ended:
            console.print(f"{self.title}: {record.why_ended}")
        self.ours.num_false += max(0, len(verdicts(record)) - len(record.strikes))
        return record

    def _run_uneven(self) -> None:
        step_s = statistics.median(kill.step_s for kill in self.ours.kills)
        with tempfile.TemporaryDirectory() as folder:
            record, self.ours.unevenness = uneven_run(
                self.size,
                self.replicas,
                Path(folder) / "run",
                self._fork_server,
                steps=self.amount.uneven_steps,
                every=SLOW_EVERY,
                factor=SLOW_FACTOR,
                step_s=step_s,
            )
        for reason in verdicts(record):
            console.print(f"{self.title}, uneven steps: {reason}")
        self.ours.num_false += len(verdicts(record)) + discarded(record)

    # Theirs.

    def _run_theirs(self, seed: int) -> None:
        seen = _torchft.strike_cluster(
            self.name, self.size, self.replicas, self.amount.theirs, seed
        )
        found = self.theirs
        found.kills += seen.outcomes
        found.stalls_s += seen.stalls_s
        found.hangs += seen.hangs
        found.cpu_s.append(seen.cpu_s)
        found.healed_bytes = max(found.healed_bytes, seen.healed_bytes)


def slowed(case: Case, slow_s: float) -> RecoverySection:
    """Every source of a joiner gives its share of the units one after the other."""
    num_units = case.size.shape.num_layers + 2
    each_ms = 1000 * slow_s / math.ceil(num_units / (case.replicas - 1))
    return RecoverySection(feed_delay_ms=int(each_ms))


# What it comes to.


def upper(values: Sequence[float | None]) -> float:
    """The median's upper bound; of too few values the largest. What was not seen is endless."""
    known = [math.inf if value is None else value for value in values]
    bound = median_bounds(known)[1]
    return bound if math.isfinite(bound) else max(known, default=math.nan)


def beyond(kill: Outcome, replicas: int) -> float | None:
    """What a kill took beyond the step and the share of the lost one."""
    if kill.commit_s is None:
        return None
    return kill.commit_s - kill.step_s * (1 + 1 / (replicas - 1))


def hang_bound(step_s: float, replicas: int, recovery: RecoverySection) -> float:
    watch_s = (recovery.hang_floor_ms + 2 * recovery.heartbeat_ms) / 1000
    return watch_s + step_s * (1 + 1 / (replicas - 1)) + BEYOND_S


def hang_limit(case: Case) -> float:
    """Of the hang with the shortest step."""
    hangs = case.ours.hangs
    bounds = [hang_bound(h.step_s, case.replicas, RecoverySection()) for h in hangs]
    return min(bounds, default=math.nan)


def stall_band(heals: Sequence[Outcome]) -> float:
    """Of a step: how much the longest steps of two calm times differ."""
    return upper([abs(heal.calm_s) / heal.step_s for heal in heals if heal.calm_s is not None])


def judge(case: Case) -> list[Goal]:
    ours, title, replicas = case.ours, case.title, case.replicas
    shares = [h.stall_s / h.step_s if h.stall_s is not None else None for h in ours.heals]
    band = stall_band(ours.heals)
    lost = max((o.discarded for o in ours.kills + ours.heals + ours.hangs), default=math.nan)
    goals = [
        Goal(
            f"{title}: kill to next commit, beyond T x (1 + 1/{replicas - 1})",
            upper([beyond(kill, replicas) for kill in ours.kills]),
            BEYOND_S,
            "s",
        ),
        Goal(f"{title}: steps discarded", lost, 0),
        Goal(f"{title}: extra stall in a slow heal, of a step", upper(shares), 0.1 + band),
        Goal(
            f"{title}: hang to next commit",
            upper([h.commit_s for h in ours.hangs]),
            hang_limit(case),
            "s",
        ),
        Goal(f"{title}: false verdicts", ours.num_false, 0),
    ]
    if case.name == "1M":
        starts = upper([kill.start_s for kill in ours.kills])
        goals.append(Goal(f"{title}: start to full membership", starts, 1.0, "s"))
    return goals


def spread(values: Sequence[float | None]) -> str:
    """Median, and the smallest and largest of several; inf: not seen in time."""
    if not values:
        return "-"
    known = sorted(math.inf if value is None else value for value in values)
    middle = f"{statistics.median(known):.3g}"
    return middle if len(known) == 1 else f"{middle} ({known[0]:.2g}-{known[-1]:.2g})"


def kill_row(found: Found) -> dict[str, object]:
    kills = found.kills
    return {
        "kills": len(kills),
        "step": spread([kill.step_s for kill in kills]),
        "kill to commit": spread([kill.commit_s for kill in kills]),
        "discarded": max((kill.discarded for kill in kills), default=0),
    }


def heal_row(found: Found) -> dict[str, object]:
    # Of torchft's, one is not replaced at once: the one before its slow heal.
    is_ours = bool(found.heals)
    replaced = [kill for kill in found.kills if kill.start_s is not None or is_ours]
    imported = [kill.imported_s for kill in replaced if kill.imported_s is not None]
    return {
        "start to full": spread([kill.start_s for kill in replaced]),
        "after imports": spread(imported),
        "extra stall": spread([heal.stall_s for heal in found.heals] or found.stalls_s),
        "A/A": spread([heal.calm_s for heal in found.heals]),
        "MB": round(found.healed_bytes / 1e6, 1),
    }


def other_row(found: Found) -> dict[str, object]:
    return {
        "stall at the switch": spread([heal.switch_s for heal in found.heals]),
        "hang to commit": spread([hang.commit_s for hang in found.hangs]),
        "CPU s per step": spread([cpu for cpu in found.cpu_s if cpu]),
    }


def ratio_line(case: Case) -> str:
    """Theirs against ours; and, for the A/A band, every other kill of ours against the rest."""
    ours = [kill.commit_s for kill in case.ours.kills if kill.commit_s]
    theirs = [kill.commit_s for kill in case.theirs.kills if kill.commit_s]
    if not ours or not theirs:
        return f"{case.title}: no ratio of kills, ours {len(ours)} and torchft {len(theirs)}"
    middle = statistics.median(theirs) / statistics.median(ours)
    low, high = min(theirs) / max(ours), max(theirs) / min(ours)
    band = statistics.median(ours[::2]) / statistics.median(ours[1::2] or ours)
    return (
        f"{case.title}: kill to commit, torchft / ours: {middle:.1f} ({low:.1f}-{high:.1f}); "
        f"A/A {band:.2f}"
    )


def measure(case: Case, contenders: list[str]) -> None:
    """Without torchft from the moment on when it cannot run."""
    try:
        case.run(contenders)
    except _torchft.NoPeer as error:
        console.print(f"ours alone: {error}")
        contenders.remove("torchft")
        case.ours, case.theirs = Found(), Found()
        case.run(contenders)


def main() -> None:
    args = parse_args(__doc__)
    amount = QUICK if args.quick else FULL
    names = ["1M"] if args.quick else list(SIZES)
    replicas = [3] if args.quick else list(MICRO_BATCHES)
    contenders, cases = ["ours", "torchft"], list[Case]()
    with ForkServer() as fork_server:
        fork_server.wait_until_warm()
        for name, count in itertools.product(names, replicas):
            case = Case(name, count, amount, fork_server)
            measure(case, contenders)
            cases.append(case)
    show(cases)
    numbers = {
        case.title: {"ours": asdict(case.ours), "torchft": asdict(case.theirs)} for case in cases
    }
    finish([goal for case in cases for goal in judge(case)], args.json, numbers)


def show(cases: Sequence[Case]) -> None:
    both = [
        ({"case": case.title, "who": who}, found)
        for case in cases
        for who, found in (("ours", case.ours), ("torchft", case.theirs))
        if found.kills
    ]
    title = "seconds: median (smallest-largest)"
    print_table(f"Kills, {title}", [name | kill_row(found) for name, found in both])
    print_table(f"Replacements, {title}", [name | heal_row(found) for name, found in both])
    print_table(f"Others, {title}", [name | other_row(found) for name, found in both])
    for case in cases:
        print(ratio_line(case))
        print(f"{case.title}: a stopped worker is missed within {hang_limit(case):.3g} s;", end=" ")
        print(f"slow steps were x{case.ours.unevenness:.1f}, false verdicts {case.ours.num_false}")


if __name__ == "__main__":
    main()
