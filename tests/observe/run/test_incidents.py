from holdfast.observe.run.incidents import COORDINATOR, Incident, LostWorker, count_failures


def incident(*lost, kind="recovery"):
    return Incident(number=1, at_s=0.0, step=3, kind=kind, lost=list(lost))


def test_a_lost_node_is_one_failure():
    node = [LostWorker(name, "node lost", "gone") for name in ("n1.g0", "n1.g1", "n2.g0")]
    killed = LostWorker("n0.g0", "killed", "by a signal")
    found = count_failures([incident(*node, killed), incident(killed), incident(kind=COORDINATOR)])
    assert found == {"coordinator lost": 1, "killed": 2, "node lost": 2}


def test_titles():
    assert incident(LostWorker("n0.g0", "hung", "")).title == "n0.g0 lost (hung)"
    assert incident().title == "a connection broke"
    assert "coordinator" in incident(kind=COORDINATOR).title
    assert incident().is_open
