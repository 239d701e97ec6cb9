from holdfast.detect.facts import Workload, workload_of


def test_a_pack_is_tokens_squares_and_documents():
    assert workload_of([3, 4]) == Workload(tokens=7, squares=25, documents=2)
    assert workload_of(()) == Workload(0, 0, 0)
