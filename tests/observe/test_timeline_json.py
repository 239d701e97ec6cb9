import json

from holdfast.observe.timeline_json import timeline_numbers
from holdfast.observe.timeline_view import Notes
from support.timelines import rerouted_plan, small_plan, small_timeline


def test_what_it_holds():
    numbers = timeline_numbers(small_timeline(small_plan(tensor=2)), Notes(costs="made up"))
    assert numbers["iteration_time"] == 33
    assert numbers["bubble_fraction"] == 9 / 33
    assert numbers["micro_batches"] == 16
    assert numbers["micro_batches_per_replica"] == {"r0": 8, "r1": 8}
    assert numbers["schedule"] == "1f1b"
    assert numbers["costs"] == "made up"
    assert len(numbers["workers"]) == 16
    worker = numbers["workers"][3]
    assert (worker["name"], worker["role"]) == ("n0.g3", "r0.s1.t1")
    assert worker["busy"] + worker["idle"] == 33
    assert worker["idle"] == sum(end - start for start, end in worker["gaps"])
    assert worker["peak_activations"] == 3
    assert worker["memory_bytes"] == sum(worker["memory"].values())


def test_it_is_json():
    numbers = timeline_numbers(small_timeline(rerouted_plan()), Notes())
    assert json.loads(json.dumps(numbers)) == numbers


def test_the_critical_path_reads_like_actions():
    path = timeline_numbers(small_timeline(), Notes())["critical_path"]
    assert path[0] == {"action": "F0@r0.s0", "start": 0.0, "end": 1.0}
    assert path[-1]["end"] == 33
    assert sum(step["end"] - step["start"] for step in path) == 33
