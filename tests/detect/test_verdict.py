from holdfast.detect.verdict import name_some, path_members, path_name, percent


def test_paths_have_names_that_read_back():
    members = ("n0.g1", "n1.g1", "n2.g1")
    assert path_members(path_name(members)) == members


def test_words():
    assert percent(0.0123) == "1.23 %"
    assert name_some(("a", "b")) == "a, b"
    assert name_some(tuple("abcdef")) == "a, b, c, d and 2 more"
