"""Does the simulator give the figures that others published?

Each system has one set of constants, printed with its rows; nothing is fitted per row. Where a
figure is not met the difference is printed, with what is known about its cause.

Goals:
    FT-HSDP, 98,304 devices, a failure every 18 minutes: 44 % (all restart) and 80 % (12
    replicas) within 2 points; with exponential gaps 57.5 % and 81.5 % (derived, not published)
    within 2 points
    Oobleck's artifact, its three models at 6 h, 1 h and 10 min between losses: within 5 %
    Malleus' plan for 70B on 64 A800: identical
    Parcae's six measured points: within 10 % each, three parameters for all of them
    ResiHP's LLaMA rows: printed and explained, without a goal
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
from scipy.optimize import least_squares

from _common import Goal, finish, parse_args, print_table
from holdfast.planner.minimax_shares import share_micro_batches, split_units
from holdfast.planner.peers.system import RecoveryConstants, SystemCard
from holdfast.planner.peers.systems import CHECKPOINT, FT_HSDP, RECYCLE
from holdfast.schedule.one_f_one_b import one_f_one_b_time
from holdfast.sim.cluster.compare import POLICIES, PolicyMaker
from holdfast.sim.cluster.events import KILLED
from holdfast.sim.cluster.hazards import HazardRates, draw_events, kill_events
from holdfast.sim.cluster.health import Hurts
from holdfast.sim.cluster.job import SimulatedJob, make_job
from holdfast.sim.cluster.peers import peer_policy
from holdfast.sim.cluster.planning import ClusterModel
from holdfast.sim.cluster.policy import Facts, Policy, PolicyDecision, stall
from holdfast.sim.cluster.records import Result
from holdfast.sim.cluster.run import RunSettings, SimulationRun
from holdfast.sim.cluster.traces import parse_trace

MINUTE, HOUR = 60_000, 3_600_000
TRACES = Path(__file__).parents[2] / "shared" / "data" / "oobleck"
"""Read if it is there; else the traces are made by their rule."""

OOBLECK_TABLE = {
    # model: (samples per step, seconds to rebalance, throughput at 30 .. 15 nodes)
    "BERT-large": (8192, 2.0, "368.246 362.215 328.354 327.778 329.139 307.213 304.454 278.526 "
                   "285.844 260.314 261.679 243.557 228.055 209.208 214.805 192.305"),
    "GPT-2": (1024, 2.0, "110.006 109.670 98.837 100.075 99.480 91.018 90.522 83.404 83.331 "
              "76.950 76.715 71.587 66.750 63.016 62.748 55.916"),
    "GPT-3 2.7B": (512, 6.0, "9.214 8.907 8.600 8.293 7.986 7.627 7.512 7.435 7.053 6.705 6.797 "
                   "6.105 6.115 5.631 5.631 5.131"),
}  # fmt: skip
OOBLECK_PUBLISHED = {
    "BERT-large": {"6h": 287.1, "1h": 286.3, "10m": 282.1},
    "GPT-2": {"6h": 85.6, "1h": 85.4, "10m": 84.8},
    "GPT-3 2.7B": {"6h": 7.29, "1h": 7.23, "10m": 6.89},
}
GAPS_MS = {"6h": 6 * HOUR, "1h": HOUR, "10m": 601_200}

MALLEUS_ALPHA = {8: 1.0, 4: 1.90, 2: 3.66, 1: 7.22}
MALLEUS = (
    ((1, 1, 4, 8, 8, 8, 8), (2, 2, 8, 17, 17, 17, 17)),
    ((2, 2, 4, 8, 8), (7, 7, 14, 26, 26)),
)

PARCAE_MS = {
    (4, 8): 2944.7,
    (1, 32): 3884.0,
    (3, 10): 3084.4,
    (1, 8): 7396.0,
    (2, 8): 4341.3,
    (5, 6): 3293.6,
}

RESIHP = {
    # model: (devices, hours, fault-free, {policy: samples/s at 2 h, 1 h, 30 min})
    "llama-7b": (16, 4, 8.22, {"oobleck": (6.04, 4.59), "recycle": (4.16, 3.94),
                               "resihp": (7.55, 6.48, 5.46)}),
    "llama-13b": (32, 8, 8.05, {"oobleck": (6.47, 4.79), "recycle": (4.91, 4.66),
                                "resihp": (7.95, 7.23, 5.95)}),
    "llama-30b": (64, 16, 5.05, {"oobleck": (4.48, 3.31), "recycle": (3.48, 3.36),
                                 "resihp": (4.80, 4.38, 3.53)}),
}  # fmt: skip
RESIHP_RANGES = {"oobleck": (1.07, 1.51), "recycle": (1.22, 1.82)}
RESIHP_MICRO_BATCHES = 8
RESIHP_NOTES = """\
  Published ResiHP values reach or exceed the share of devices alive (13B, 2 h: 0.988 against 0.92)
  although its tensor groups shrink to powers of two: the fault-free runs must have had slack
  (bubbles, communication, launch overhead) that this model does not have. Its rule here also
  proposes a new layer split or migration, not both at once. Its ratios to Oobleck therefore come
  out lower here.
  ReCycle-like lies within 7 % of the published values for 13B and 30B and 20 % above them for 7B;
  the last rows show what is left of it with whole backward passes.
  Where the kills hit is not published. Here no kill takes the last whole tensor group of a stage
  while there is a choice; the 30-minute rows of Oobleck and ReCycle are aborted runs and left out.
"""


def costs_line(costs: RecoveryConstants) -> str:
    given = [(name, getattr(costs, name)) for name in costs.__struct_fields__ if name != "source"]
    return "  constants: " + ", ".join(f"{name} {value:g}" for name, value in given if value)


def ft_result(policy: Policy, job: SimulatedJob, fixed: bool, cycles: int, seed: int) -> Result:
    rates = HazardRates(
        mtbf_ms=18 * MINUTE, fixed_gaps=fixed, repair_ms=HOUR, correlated=0.0, causes=(KILLED,)
    )
    length_ms = cycles * 18 * MINUTE + fixed
    events = draw_events(job, rates, length_ms, seed)
    return SimulationRun(
        policy, events, RunSettings(length_ms=length_ms, mtbf_ms=18 * MINUTE)
    ).finish()


def stalls_only(model: ClusterModel) -> Policy:
    """As the published formula counts: no checkpoint time, no lost work."""
    policy = peer_policy(CHECKPOINT, model)
    policy.costs = msgspec.structs.replace(policy.costs, save_ms=0)
    return policy


def parts_as_quoted(model: ClusterModel) -> Policy:
    """The parts of a synchronous recovery add up to 800 s, not to the quoted 10 minutes."""
    policy = stalls_only(model)
    policy.costs = msgspec.structs.replace(
        policy.costs, groups_ms=300_000, first_step_ms=200_000, source="parts as quoted"
    )
    return policy


def check_ft(quick: bool) -> tuple[list[dict[str, Any]], list[Goal]]:
    job = make_job("llama-70b", 98_304, replicas=12)
    cycles = 1500 if quick else 4000
    model = ClusterModel(job)
    ft_hsdp, restart = POLICIES[FT_HSDP.key], POLICIES[CHECKPOINT.key]
    cases: tuple[tuple[str, PolicyMaker, bool, float | None], ...] = (
        ("all restart, fixed gaps", stalls_only, True, 44.4),
        ("12 replicas, fixed gaps", ft_hsdp, True, 80.1),
        ("all restart, exponential gaps", stalls_only, False, 57.5),
        ("12 replicas, exponential gaps", ft_hsdp, False, 81.5),
        ("all restart, checkpoints and lost work too", restart, True, None),
        ("all restart, parts as quoted (800 s)", parts_as_quoted, True, None),
    )
    rows, goals = [], []
    for name, maker, fixed, published in cases:
        policy = maker(model)
        share = 100 * ft_result(policy, job, fixed, cycles, seed=1).goodput
        difference = share - published if published is not None else 0.0
        rows.append(
            {
                "case": name,
                "published %": "-" if published is None else f"{published:.1f}",
                "simulated %": share,
                "points": "-" if published is None else f"{difference:+.2f}",
            }
        )
        if published is not None:
            goals.append(Goal(f"FT-HSDP, {name}", abs(difference), 2.0, "points"))
    print_table("FT-HSDP at 98,304 devices, a failure every 18 minutes", rows)
    for maker in (stalls_only, ft_hsdp):
        policy = maker(model)
        print(f"  {policy.card.name}: {policy.costs.source}")
        print(costs_line(policy.costs))
    print(
        "  The parts are chosen within the quoted figures so that they add up to the quoted 10 and "
        "3 minutes;\n  what is tested is that stalls, overlaps and rejoining give the shares."
    )
    return rows, goals


class TableModel:
    """A job of which only the step time is known."""

    def __init__(self, job: SimulatedJob, step_ms: float) -> None:
        self.job, self.step_ms = job, step_ms

    def slow_rate(self, hurts: Hurts) -> float:
        return 1.0


class TablePolicy(Policy):
    """Throughput by the number of nodes left, as Oobleck's own simulator takes it."""

    card = SystemCard(name="Oobleck's table", rule="", source="sosp23-artifact", limits="")

    def __init__(self, model: TableModel, table: Sequence[float], rebalance_ms: int) -> None:
        super().__init__(model)
        self.table, self.rebalance_ms = tuple(table), rebalance_ms
        self.costs = RecoveryConstants(
            exit_ms=0, hang_ms=0, source="rebalance 2 / 2 / 6 s, half a step lost"
        )

    def decide(self, facts: Facts) -> PolicyDecision:
        lost = len(facts.situation.pipelines)
        rate = self.table[lost] / self.table[0]
        half_step = round(self.model.step_ms / rate / 2)
        return PolicyDecision(
            strategy="reconfigure",
            reason=f"{self.job.pipelines - lost} nodes left",
            rate=rate,
            rate_at_full_speed=rate,
            stall=stall(moving_state=self.rebalance_ms, lost_work=half_step),
        )


def trace_text(name: str) -> str:
    """The trace as published, or (it is fully regular) made by its rule."""
    path = TRACES / f"{name}.csv"
    if path.is_file():
        return path.read_text()
    added = [f"0,add,node{i}" for i in range(1, 31)]
    return "\n".join(added + [f"{GAPS_MS[name] * i},remove,node{i}" for i in range(1, 16)])


def table_throughput(model: str, name: str) -> float:
    batch, rebalance, text = OOBLECK_TABLE[model]
    table = [float(value) for value in text.split()]
    job = SimulatedJob(
        model=model, num_layers=1, replicas=30, stages=1, tensor=1, micro_batches=1,
        devices_per_node=1,
    )  # fmt: skip
    trace = parse_trace(trace_text(name), name)
    policy = TablePolicy(TableModel(job, 1e3 * batch / table[0]), table, round(1e3 * rebalance))
    settings = RunSettings(length_ms=trace.end_ms)
    return table[0] * SimulationRun(policy, trace.events(1), settings).finish().goodput


def check_oobleck() -> tuple[list[dict[str, Any]], list[Goal]]:
    rows, goals = [], []
    for model, columns in OOBLECK_PUBLISHED.items():
        for name, published in columns.items():
            simulated = table_throughput(model, name)
            off = 100 * (simulated / published - 1)
            rows.append(
                {"model": model, "gap": name, "published": published, "simulated": simulated,
                 "difference %": off}
            )  # fmt: skip
            goals.append(Goal(f"Oobleck, {model}, {name}", abs(off), 5.0, "%"))
    print_table("Oobleck's artifact, samples/s", rows)
    print("  constants: tput(30 .. 15) of the artifact; 2 / 2 / 6 s to rebalance; half a step lost")
    return rows, goals


def check_malleus() -> tuple[list[dict[str, Any]], list[Goal]]:
    rows, wrong, slots = [], 0, []
    for groups, published in MALLEUS:
        layer = [MALLEUS_ALPHA[size] for size in groups]
        bounds = split_units(list(map(float, range(81))), layer) or ()
        found = tuple(b - a for a, b in pairwise(bounds))
        slots.append(max(n * time for n, time in zip(found, layer, strict=True)))
        wrong += found != published
        rows.append(
            {"tensor groups": str(list(groups)), "published": str(list(published)),
             "simulated": str(list(found)), "same": str(found == published)}
        )  # fmt: skip
    counts = share_micro_batches([(0.0, slot) for slot in slots], 64)
    wrong += counts != [39, 25]
    rows.append(
        {"tensor groups": "micro-batches", "published": "[39, 25]", "simulated": str(counts),
         "same": str(counts == [39, 25])}
    )  # fmt: skip
    print_table("Malleus, 70B on 64 A800, layers per stage", rows)
    print(f"  constants: slow-down of smaller tensor groups {MALLEUS_ALPHA} (measured by Malleus)")
    return rows, [Goal("Malleus, parts that differ", wrong, 0)]


def parcae_ms(point: tuple[int, int], layer: float, stage: float, sync: float) -> float:
    """48 layers and 128 samples over (dp, pp): the pipeline, and a ring over the replicas for the
    largest stage.
    """
    dp, pp = point
    counts = [(i + 1) * 48 // pp - i * 48 // pp for i in range(pp)]
    times = [count * layer + stage for count in counts]
    forward, backward = [time / 3 for time in times], [2 * time / 3 for time in times]
    ring = 2 * (dp - 1) / dp * max(counts) / 48 * sync
    return one_f_one_b_time(forward, backward, -(-128 // dp)) + ring


def fit_parcae(points: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Least squares of the relative errors."""

    def errors(values: Any, /) -> list[float]:
        layer, stage, sync = values
        return [parcae_ms(p, layer, stage, sync) / PARCAE_MS[p] - 1 for p in points]

    found = least_squares(errors, [6.0, 10.0, 3000.0], x_scale=[1.0, 1.0, 1000.0])
    return tuple(float(value) for value in found.x)  # type: ignore[return-value]


def check_parcae() -> tuple[list[dict[str, Any]], list[Goal]]:
    points = list(PARCAE_MS)
    fitted = fit_parcae(points)
    rows: list[dict[str, Any]] = []
    for point in points:
        others = fit_parcae([p for p in points if p != point])
        simulated = parcae_ms(point, *fitted)
        rows.append(
            {
                "(dp, pp)": str(point),
                "published ms": PARCAE_MS[point],
                "simulated ms": simulated,
                "difference %": 100 * (simulated / PARCAE_MS[point] - 1),
                "left out of the fit %": 100 * (parcae_ms(point, *others) / PARCAE_MS[point] - 1),
            }
        )
    print_table("Parcae, GPT-1.5B, one step", rows)
    layer, stage, sync = fitted
    print(
        f"  constants, fitted together on the six points: {layer:.2f} ms a layer, {stage:.2f} ms a "
        f"stage and micro-batch, {sync:.0f} ms to reduce the whole model once"
    )
    worst = max(abs(row["difference %"]) for row in rows)
    return rows, [Goal("Parcae, largest difference", worst, 10.0, "%")]


def plain_recycle(model: ClusterModel) -> Policy:
    """With whole backward passes."""
    return peer_policy(RECYCLE, model, ("1f1b",))


def resihp_share(maker: PolicyMaker, model: str, gap_ms: int, seeds: range) -> float:
    """Throughput relative to fault-free, over the time in which training was possible."""
    devices, hours, _, _ = RESIHP[model]
    job = make_job(model, devices, replicas=2, spare_nodes=0, micro_batches=RESIHP_MICRO_BATCHES)
    policy = maker(ClusterModel(job))
    shares = []
    for seed in seeds:
        events = kill_events(job, gap_ms, hours * HOUR // gap_ms, seed)
        settings = RunSettings(length_ms=hours * HOUR, mtbf_ms=gap_ms)
        budget = SimulationRun(policy, events, settings).finish().budget
        waited = budget.lost_ms.get("waiting for devices", 0.0)
        shares.append(budget.productive_ms / (budget.total_ms - waited))
    return mean(shares)


def check_resihp(quick: bool) -> list[dict[str, Any]]:
    seeds = range(3 if quick else 10)
    rows: list[dict[str, Any]] = []
    for model, (devices, hours, healthy, published) in RESIHP.items():
        for number, gap_ms in enumerate((2 * HOUR, HOUR, HOUR // 2)):
            kills = hours * HOUR // gap_ms
            row: dict[str, Any] = {
                "model": model.removeprefix("llama-"),
                "gap": ("2h", "1h", "30m")[number],
                "alive": 1 - (kills + 1) / 2 / devices,
            }
            for policy, values in published.items():
                if number < len(values):
                    row[f"{policy} pub"] = values[number] / healthy
                    row[f"{policy} sim"] = resihp_share(POLICIES[policy], model, gap_ms, seeds)
            rows.append(row)
    _print_resihp(rows, seeds)
    return rows


def _print_resihp(rows: list[dict[str, Any]], seeds: range) -> None:
    columns = dict.fromkeys(key for row in rows for key in row)
    shown = [{key: row.get(key, "-") for key in columns} for row in rows]
    print_table("ResiHP, throughput relative to fault-free", shown)
    ratios = []
    for row in rows:
        for peer, (low, high) in RESIHP_RANGES.items():
            if f"{peer} pub" in row:
                published = row["resihp pub"] / row[f"{peer} pub"]
                simulated = row["resihp sim"] / row[f"{peer} sim"]
                inside = "inside" if low <= simulated <= high else "outside"
                ratios.append(
                    {"model": row["model"], "gap": row["gap"], "ResiHP over": peer,
                     "published": published, "simulated": simulated,
                     "range": f"{low}-{high}: {inside}"}
                )  # fmt: skip
    print_table("ResiHP, ratios to its baselines", ratios)
    plain = [
        {"model": model, "gap": "1h", "ReCycle published": RESIHP[model][3]["recycle"][1] / free,
         "whole backward passes": resihp_share(plain_recycle, model, HOUR, seeds)}
        for model, (_, _, free, _) in RESIHP.items()
    ]  # fmt: skip
    print_table("ReCycle without memory for bubbles", plain)
    print(RESIHP_NOTES, end="")
    print(
        f"  {RESIHP_MICRO_BATCHES} micro-batches per pipeline; mean of {len(seeds)} orders of kills"
    )


def main() -> None:
    args = parse_args(__doc__)
    measured: dict[str, Any] = {}
    goals: list[Goal] = []
    for name, (rows, found) in {
        "ft-hsdp": check_ft(args.quick),
        "oobleck": check_oobleck(),
        "malleus": check_malleus(),
        "parcae": check_parcae(),
    }.items():
        measured[name] = rows
        goals += found
    measured["resihp"] = check_resihp(args.quick)
    finish(goals, args.json, measured)


if __name__ == "__main__":
    main()
