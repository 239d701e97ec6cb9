"""The batch script of a job under Slurm.

    step of agents      one task per host. The loss of a host ends neither it nor the job
                        (--no-kill, --kill-on-bad-exit=0, --wait=0); an agent that was killed is
                        started again on its host
    step of the launcher  on the first host. It is a step, and not only a child of the script,
                        because the warning of a preemption (SIGTERM at the begin of GraceTime) goes
                        to steps alone
    the script          passes the warning before the time limit on (--signal=B:...), and decides at
                        the end whether the job is queued again

Who sent SIGTERM shows in who got it. Where Slurm ends the job (scancel, the time limit, the end of
a grace time), the script gets it, too, and what becomes of the job is Slurm's to say. Where only
the steps get it, the job is preempted and has ended in time, so it is queued again.

A job that failed is queued again if it came further than its last start: hosts may have been lost
that are not to be had back within one allocation. Without a new step it ends with 93, the code that
means: do not queue this again.
"""

import shlex

from holdfast.submit.request import SETTLE_S, SubmitRequest, agent_arguments

EXIT_NO_REQUEUE = 93
MAX_AGENT_STARTS = 10
LOOK_S = 20
LEAVE_S = 30
"""How long agents may take to end when the job is over; then Slurm ends them."""

HEAD = """\
# Made by `holdfast submit`. One step of agents, one step of the launcher; see docs/schedulers.md.
set -u
export PYTHONUNBUFFERED=1
launcher= is_warned=0 ended_by_slurm=0
trap 'is_warned=1' {stop}
trap 'ended_by_slurm=1' TERM
"""

AGENTS = """\
# A host that is lost ends neither the step nor the job. An agent that was killed begins again, as
# the same node and with the memory that is left. Where the first host is lost, with this script,
# Slurm keeps the job and nothing would end it: another host stops it with a checkpoint and queues
# it again. Host k looks every {look_s} * k seconds, so that Slurm is asked seldom.
srun --overlap --no-kill --kill-on-bad-exit=0 --wait=0 \\
     --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 \\
     bash -c '
watch_first_host() {{
    trap "kill \\$nap; exit" TERM
    while :; do
        sleep $(({look_s} * SLURM_PROCID)) & nap=$!
        wait $nap
        hosts=$(squeue -h -j "$SLURM_JOB_ID" -o %N) && [ -n "$hosts" ] || continue
        scontrol show hostnames "$hosts" | grep -qxF "$1" && continue
        echo "holdfast: $1 is lost, and the launcher with it; the job is queued again"
        trap "" TERM
        timeout {warn_s} "${{@:3}}" stop "$2"
        sleep {settle_s}
        scontrol requeue "$SLURM_JOB_ID"
        return
    done
}}
trap : TERM  # the agent has it, too, and stays for the last checkpoint
watcher=
[ "$SLURM_PROCID" -eq 0 ] || {{ watch_first_host "$3" "$1" "${{@:4:{num_words}}}" & watcher=$!; }}
starts=0
while :; do
    "${{@:4}}" --join "$1" --label "$SLURMD_NODENAME" --folder "$2/$SLURMD_NODENAME"
    code=$?
    case $code in 0|1|2|130|143) break ;; esac
    [ $((starts += 1)) -lt {max_starts} ] || break
    echo "holdfast: the agent on $SLURMD_NODENAME ended with $code; it is started again"
done
[ -z "$watcher" ] || {{ kill $watcher; wait $watcher; }}
exit $code' holdfast-agent "$rendezvous" "$run_dir/hosts" "$SLURMD_NODENAME" \\
     {agent} &
agents=$!
"""

LAUNCHER = """\
srun --overlap --no-kill --kill-on-bad-exit=0 --nodes=1 --ntasks=1{no_devices} \\
     --nodelist="$SLURMD_NODENAME" \\
     {run} --net.rendezvous "$rendezvous" --job.run_dir "$run_dir" &
launcher=$!
"""

FOLLOW = """\
# Not `wait`: where two signals interrupt it at once, bash may never run the second one's trap.
while kill -0 $launcher 2>/dev/null; do
    [ $is_warned -eq 0 ] || {{ kill -s {stop} $launcher 2>/dev/null; is_warned=0; }}
    sleep 0.5
done
wait $launcher
code=$?
case $code in
    # It was killed; the job lives on without it, but no process would requeue it.
    137|139) timeout {warn_s} {stop_job} "$rendezvous" ;;
esac
for _ in $(seq {leave_s}); do
    kill -0 $agents 2>/dev/null || break
    sleep 1
done
"""

END = """\
again() {{
    echo "holdfast: $1; the job is queued again and goes on from there"
    scontrol requeue "$SLURM_JOB_ID"
    exit $code
}}
[ $code -eq 0 ] && exit 0
[ $ended_by_slurm -eq 1 ] && exit $code
[ $code -eq {no_requeue} ] && exit {no_requeue}
case $code in
    {stop_codes}) again "stopped with a checkpoint" ;;
esac
[ "$(last_step)" -gt "$steps_before" ] && again "ended with $code after step $(last_step)"
echo "holdfast: ended with $code without a new step: the job is not queued again"
exit {no_requeue}
"""

SIGNAL_NUMBERS = {"SIGINT": 2, "SIGUSR1": 10, "SIGUSR2": 12, "SIGTERM": 15}
"""Of Linux, but for a few architectures that Slurm clusters do not have."""


def batch_script(request: SubmitRequest) -> str:
    """What `sbatch` is given."""
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH --{name}{f'={value}' if value else ''}" for name, value in _head(request)),
            HEAD.format(stop=_bare(request.stop_signal)),
            _places(request),
            AGENTS.format(
                look_s=LOOK_S,
                num_words=len(request.program),
                warn_s=request.warn_s,
                settle_s=round(SETTLE_S / 2),
                max_starts=MAX_AGENT_STARTS,
                agent=shlex.join([*request.program, "agent", *agent_arguments(request)]),
            ),
            LAUNCHER.format(
                no_devices=" --gpus-per-node=0" if request.is_cuda else "",
                run=shlex.join([*request.program, "run", request.job_file, *request.settings]),
            ),
            FOLLOW.format(
                stop=_bare(request.stop_signal),
                warn_s=request.warn_s,
                stop_job=shlex.join([*request.program, "stop"]),
                leave_s=LEAVE_S,
            ),
            END.format(no_requeue=EXIT_NO_REQUEUE, stop_codes=_stop_codes(request)),
        ]
    )


def _head(request: SubmitRequest) -> list[tuple[str, str]]:
    """The options of the job; those that the user gives go before ours."""
    ours = {
        "job-name": request.name,
        "nodes": str(request.num_hosts),
        "ntasks-per-node": "1",
        "chdir": request.folder,
        "output": f"{request.name}-%j.out",
        "open-mode": "append",
        "requeue": "",
        "no-kill": "",
        "signal": f"B:{_bare(request.stop_signal)}@{request.warn_s}",
    }
    if request.is_cuda:
        ours["gpus-per-node"] = str(request.devices_per_node)
    return list({**ours, **dict(request.options)}.items())


def _places(request: SubmitRequest) -> str:
    """Where the job meets and writes; the same after a requeue, which keeps the number."""
    own = shlex.quote(f"{request.folder}/runs/{request.name}-") + '"$SLURM_JOB_ID"'
    kind, _, place = request.rendezvous.partition(":")
    met = shlex.quote(place) if kind == "dir" else own
    run_dir = shlex.quote(request.run_dir) if request.run_dir else met
    rendezvous = shlex.quote(request.rendezvous) if request.rendezvous else f"dir:{own}"
    lines = [
        f"run_dir={run_dir}",
        f"rendezvous={rendezvous}",
        "last_step() {",
        """    sed -n 's/.*"step": *\\([0-9]*\\).*/\\1/p' "$run_dir/metrics.jsonl" 2>/dev/null |""",
        "        sort -n | tail -n 1 | grep . || echo -1",
        "}",
        "steps_before=$(last_step)",
        'mkdir -p "$run_dir/hosts"',
        "",
    ]
    return "\n".join(lines)


def _stop_codes(request: SubmitRequest) -> str:
    """Of a launcher that a scheduler has stopped."""
    names = dict.fromkeys([request.stop_signal, "SIGTERM"])
    return "|".join(str(128 + SIGNAL_NUMBERS[name]) for name in names)


def _bare(signal: str) -> str:
    """`USR1` for SIGUSR1."""
    return signal.removeprefix("SIG")
