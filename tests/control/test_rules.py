from holdfast.control.rules import Rules


def test_a_job_runs_with_all_rules():
    rules = Rules()
    assert all(getattr(rules, name) for name in Rules.__struct_fields__)
