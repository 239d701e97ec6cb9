from holdfast.observe.run.workers import MAX_HISTORY, Workers


def test_a_worker_is_lost_and_comes_back():
    workers = Workers()
    workers.expect(["n0.g0", "n0.g1"], 0.0)
    assert workers.counts()["starting"] == 2
    workers.ready({"n0.g0": 7, "n0.g1": 8}, 1.0)
    assert workers.lost("n0.g1", 1, "killed", "by a signal", 2.0)
    assert workers.missing() == ["n0.g1"]
    workers.restarted("n0.g1", 2, 3.0)
    assert workers.known["n0.g1"].state == "joining"
    assert not workers.lost("n0.g1", 2, "killed", "while it joined", 3.5)
    workers.joined(["n0.g1"], 4.0)
    worker = workers.known["n0.g1"]
    assert workers.missing() == []
    assert (worker.state, worker.num_failures, worker.node) == ("alive", 2, "n0")
    assert [at_s for at_s, _ in worker.history] == [0.0, 1.0, 2.0, 3.0, 3.5, 4.0]


def test_workers_without_a_role():
    workers = Workers()
    workers.ready({"n0.g0": 7, "n0.g1": 8}, 1.0)
    workers.gone(["n0.g0"], 2.0)
    workers.left(["n0.g1"], 3.0)
    assert {state: n for state, n in workers.counts().items() if n} == {"lost": 1, "left": 1}
    assert workers.missing() == ["n0.g0"]


def test_the_history_is_bounded():
    workers = Workers()
    for number in range(3 * MAX_HISTORY):
        workers.joined(["n0.g0"], float(number))
    assert len(workers.known["n0.g0"].history) <= MAX_HISTORY + 1


def test_health_in_a_word():
    workers = Workers()
    workers.ready({"n0.g0": 7, "n0.g1": 8}, 1.0)
    workers.judged(["n0.g0", "n0>n1"], "slow", 2.5, "computes longer", 2.0)
    assert (workers.known["n0.g0"].health, workers.known["n0.g0"].slow) == ("slow", 2.5)
    workers.judged(["n0.g0"], "recovered", 1.0, "as before", 3.0)
    workers.lost("n0.g1", 1, "hung", "no progress", 4.0)
    assert [worker.health for worker in workers.in_order()] == ["alive", "hung"]
    assert workers.counts()["hung"] == 1
