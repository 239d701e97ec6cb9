"""From the job's settings to those of the machine that decides."""

from holdfast.control.settings import (
    ControlSettings,
    DetectSettings,
    ReplanSettings,
    SnapshotSettings,
)
from holdfast.runtime.config.section_types import default_of
from holdfast.runtime.config.snapshot_options import snapshot_options
from holdfast.runtime.launch.launcher_messages import CoordinatorSpec

GRACE_S = 10.0
"""How much longer than its workers the coordinator waits for any sign of progress."""
LEAVING_MS = 500
"""Of a device: a worker that shares a group with one that died may be blocked in its driver."""


def settings_of(spec: CoordinatorSpec, term: int = 0) -> ControlSettings:
    """`term`: that was taken at the rendezvous, if there is one."""
    recovery, snapshot = spec.config.recovery, spec.config.snapshot
    options = snapshot_options(spec.config, spec.memory, "")
    return ControlSettings(
        plan=spec.plans[0].plan,
        changes=spec.plans,
        first_step=spec.first_step,
        run=spec.run,
        term=term,
        grace_ms=int(1000 * spec.config.job.grace_s),
        num_steps=spec.config.job.steps,
        ends_with_failure=recovery.mode == "off",
        patience_ms=int(1000 * (spec.config.job.timeout_s + GRACE_S)),
        heartbeat_ms=recovery.heartbeat_ms,
        hang_floor_ms=recovery.hang_floor_ms,
        hang_multiple=recovery.hang_multiple,
        detect=DetectSettings(on=spec.config.detect.on, learn_steps=spec.config.detect.learn_steps),
        snapshots=SnapshotSettings(
            options=options if spec.memory else None,
            persists=snapshot.persists,
            checkpoint_every_s=snapshot.persist_every_s,
            max_cost=snapshot.max_cost,
        ),
        mode="fast" if recovery.mode == "fast" else "exact",
        non_finite=recovery.non_finite,
        go_back_tries=recovery.go_back_tries,
        settle_ms=recovery.settle_ms,
        answer_ms=recovery.answer_ms,
        leaving_ms=LEAVING_MS if spec.config.job.device == "cuda" else recovery.answer_ms,
        enter_ms=min(default_of(ControlSettings, "enter_ms"), int(250 * spec.config.job.timeout_s)),
        join_within_ms=int(1000 * recovery.join_within_s),
        lost_after_ms=recovery.lost_after_ms,
        max_restarts=recovery.max_restarts,
        restart_window_ms=int(1000 * recovery.restart_window_s),
        replan=ReplanSettings(
            policy=recovery.plan if recovery.mode != "off" else "off",
            search_s=recovery.plan_search_s,
            node_return_s=recovery.node_return_s,
        ),
    )
