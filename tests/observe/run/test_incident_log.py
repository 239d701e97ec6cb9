from holdfast.observe.run.incident_log import IncidentLog, RunMoment
from holdfast.observe.run.incidents import LostWorker
from holdfast.observe.run.intervals import StepInterval

NOW = RunMoment(5.0, 20, "2 x 1", "plan_0.toml")


def lost(worker, kind="killed", reason="signal 9"):
    return LostWorker(worker, kind, reason)


def end_step(log, step, start_s, end_s, *, is_over=True):
    interval = StepInterval(start_s=start_s, end_s=end_s, seen_s=5.0, is_over=is_over)
    log.step_ended(step, interval, {"groups": end_s - start_s - 1.0}, 1.0)


def test_faults_belong_to_the_incident_that_follows():
    log = IncidentLog()
    log.note_fault("SIGKILL n0.g0")
    assert log.lost(NOW, lost("n0.g0"), had_role=True)
    assert log.lost(NOW, lost("n1.g0"), had_role=False)  # while it is open
    (incident,) = log.incidents
    assert incident.faults == ["SIGKILL n0.g0"]
    assert incident.missing == ["n0.g0", "n1.g0"]
    assert (incident.step, incident.shape_before, incident.file_before) == (20, NOW.shape, NOW.file)


def test_it_is_over_with_the_step_that_ends_it_and_whole_when_all_are_back():
    log = IncidentLog()
    log.lost(NOW, lost("n0.g0"), had_role=True)
    end_step(log, 20, 4.5, 6.0, is_over=False)
    assert log.is_open
    end_step(log, 21, 6.0, 9.0)
    assert not log.is_open
    (incident,) = log.incidents
    assert (incident.over_s, incident.over_step, incident.stall_s) == (9.0, 21, 2.5)
    assert incident.costs_s == {"groups": 2.5}
    assert incident.whole_s is None
    log.back(["n1.g0"], 10.0)
    assert incident.missing == ["n0.g0"]
    log.back(["n0.g0"], 11.0)
    assert (incident.missing, incident.whole_s) == ([], 11.0)


def test_a_worker_without_a_role_disturbs_nothing():
    log = IncidentLog()
    assert not log.lost(NOW, lost("n2.g0"), had_role=False)
    assert not log.is_open
    assert [incident.kind for incident in log.incidents] == ["joiner"]


def test_further_workers_of_a_lost_node_are_of_its_incident():
    log = IncidentLog()
    log.lost(NOW, lost("n0.g0", "node lost", "n0 is silent"), had_role=True)
    end_step(log, 20, 4.5, 6.0)
    log.lost(NOW, lost("n0.g1", "node lost", "n0 is silent"), had_role=False)
    log.lost(NOW, lost("n1.g1", "node lost", "n1 is silent"), had_role=False)
    assert [len(incident.lost) for incident in log.incidents] == [2, 1]


def test_a_job_that_was_killed_is_late_since_its_last_step():
    log = IncidentLog()
    log.killed(NOW, 2.0)
    log.conclude(NOW, "run", "2 x 1", "plan_1.toml")
    end_step(log, 20, 5.0, 9.0)
    (incident,) = log.incidents
    assert (incident.at_s, incident.stall_s, incident.whole_s) == (2.0, 6.0, 9.0)
