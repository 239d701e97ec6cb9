"""Which version is whole: found out from manifests alone, and never from two histories."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.plan.build import regular_plan
from holdfast.plan.holders import HolderMap
from holdfast.plan.units import subtract
from holdfast.snapshot.layout import OTHER, PARITY
from holdfast.snapshot.loadable import find_loadable
from holdfast.snapshot.manifest import Holding, Manifest, survey
from holdfast.snapshot.memory.arena import Version
from holdfast.snapshot.share import plan_shares
from support.random_plans import make_units
from support.snapshots import Cluster, random_state

UNITS = make_units(2, tied=True)


def plan_of(**degrees):
    return regular_plan(UNITS, **{"micro_batches": 6, "devices_per_node": 1} | degrees)


PLANS = [plan_of(replicas=2), plan_of(replicas=3), plan_of(stages=2), plan_of(tensor=2, replicas=2)]


def manifests_of(plan, version):
    """As agents would send them; checksums do not matter here as long as they agree."""
    shares = plan_shares(plan, chunk_bytes=64, other_bytes=16)
    return [
        Manifest(
            layout.node,
            version,
            layout,
            {e.key: [len(e.key)] * layout.num_chunks(e) for e in layout.checked},
        )
        for layout in (*shares.layouts, *shares.copies)
    ]


def is_whole(plan, manifests):
    """A dumb second opinion: every element of every tensor, one by one tensor and kind."""
    there = {e.key: e for m in manifests for e in m.layout.entries if e.kind != PARITY}
    changed = True
    while changed:
        changed = False
        for row in (row for m in manifests for row in m.layout.rows):
            open_strips = [s for s in row.strips if any(e.key not in there for e in s)]
            if len(open_strips) == 1:
                there |= {e.key: e for e in open_strips[0]}
                changed = True
    for name, spec in HolderMap(plan).tensors.items():
        for kind in [kind.name for kind in spec.kept().kinds]:
            rest = [spec.whole()]
            for entry in there.values():
                if (entry.tensor, entry.kind) == (name, kind):
                    rest = [p for box in rest for p in subtract(box, entry.box)]
            if rest:
                return False
    return True


VERSIONS = st.builds(Version, st.integers(1, 3), st.integers(0, 2))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_newest_whole_version_is_found_whatever_is_missing(data):
    """Any plans and versions, any subset of their manifests, in any order."""
    saved = data.draw(
        st.lists(st.tuples(st.sampled_from(PLANS), VERSIONS), max_size=4, unique_by=lambda s: s[1])
    )
    kept = []
    for plan, version in saved:
        every = manifests_of(plan, version)
        kept.append((plan, version, data.draw(st.lists(st.sampled_from(every), unique_by=id))))
    everything = data.draw(st.permutations([m for _, _, found in kept for m in found]))
    found = find_loadable(survey(everything), {})
    whole = [version for plan, version, found in kept if found and is_whole(plan, found)]
    expected = max(whole, key=lambda version: version.age, default=None)
    assert (found[0].version if found else None) == expected
    assert {one.version for one in found} == set(whole)


def test_two_histories_of_one_step_are_never_mixed():
    plan = plan_of(replicas=2)
    first, second = manifests_of(plan, Version(7, 1)), manifests_of(plan, Version(7, 2))
    mixed = [first[0], second[1]]
    # Each half is computable from the other's parity, so drop that: only mixing would be whole.
    bare = [msgspec.structs.replace(m, layout=without_parity(m.layout)) for m in mixed]
    assert find_loadable(survey(bare), {}) == []
    assert [status.version.agreed_in for status in survey(bare)] == [2, 1]
    newest, _ = find_loadable(survey([*first, second[1]]), {})
    assert newest.version == Version(7, 2)  # by its parity


def without_parity(layout):
    entries = tuple(e for e in layout.entries if e.kind != PARITY)
    return msgspec.structs.replace(layout, entries=entries, rows=())


def test_a_holding_refuses_to_be_mixed():
    one, two = manifests_of(PLANS[0], Version(7, 1)), manifests_of(PLANS[0], Version(7, 2))
    other = manifests_of(PLANS[1], Version(7, 1))
    for mixed in ([one[0], two[1]], [one[0], other[1]]):
        with pytest.raises(HoldfastError, match="not used together"):
            Holding(mixed)


def test_two_plans_of_one_version_are_judged_apart():
    one, two = manifests_of(plan_of(stages=2), Version(7, 1)), manifests_of(PLANS[0], Version(7, 1))
    statuses = survey([one[0], *two])
    assert len(statuses) == 2
    assert [status.is_complete for status in statuses].count(True) == 1


def test_a_torn_manifest_makes_its_version_unusable():
    plan = plan_of(replicas=2)
    good, torn = manifests_of(plan, Version(7, 1))
    key = next(iter(torn.checksums))
    for broken in ({}, torn.checksums | {key: torn.checksums[key][:-1]}):
        bad = msgspec.structs.replace(torn, checksums=broken)
        newer, older = survey([good, bad, *manifests_of(plan, Version(6, 1))])
        assert (older.version, older.is_complete) == (Version(6, 1), True)
        assert not newer.is_complete
        assert "is torn" in newer.reason


def with_checksum(manifest, key, value):
    changed = [value] * len(manifest.checksums[key])
    return msgspec.structs.replace(manifest, checksums=manifest.checksums | {key: changed})


def test_contradicting_manifests_make_their_version_unusable():
    plan = plan_of(stages=2)
    manifests = manifests_of(plan, Version(7, 1))
    copy = manifests[-1]
    key = copy.layout.entries[0].key
    wrong = with_checksum(copy, key, 99)
    (status,) = survey([*manifests[:-1], wrong])
    assert not status.is_complete
    assert "mixed, not usable" in status.reason
    changed = msgspec.structs.replace(copy.layout, tensors=copy.layout.tensors[1:])
    other = msgspec.structs.replace(copy, layout=changed)
    (status,) = survey([*manifests[:-1], other])
    assert "different models" in status.reason


def test_the_loops_state_must_agree_too():
    one, two = manifests_of(plan_of(replicas=2), Version(7, 1))
    key = next(e.key for e in two.layout.entries if e.kind == OTHER)
    wrong = with_checksum(two, key, 1)
    assert find_loadable(survey([one, wrong]), {}) == []


def test_parity_that_disagrees_with_an_owner_is_reported_and_not_used():
    one, two, three = manifests_of(plan_of(replicas=3), Version(7, 1))
    key = one.layout.rows[0].strips[0][0].key
    wrong = with_checksum(one, key, 0)
    holding = Holding([wrong, two, three])
    (line,) = holding.disagreements()
    assert "n0.g0 folded other bytes" in line
    assert "the holders differ" in line
    assert holding.status().is_complete
    assert key not in holding.rows
    assert Holding([one, two, three]).disagreements() == []
    # The row is still the only word on an owner that is gone: it protects what it saw.
    assert Holding([wrong, three]).status().is_complete


def test_a_degraded_version_says_so():
    manifests = manifests_of(plan_of(replicas=3), Version(7, 1))
    (whole,) = survey(manifests)
    assert not whole.is_degraded
    (left,) = survey(manifests[1:])
    assert left.is_complete
    assert left.is_degraded
    assert "by parity" in left.reason


def test_a_state_that_does_not_say_what_is_whole_is_not_whole():
    (manifest, _) = manifests_of(plan_of(replicas=2), Version(1, 0))
    layout = msgspec.structs.replace(manifest.layout, tensors=())
    (status,) = survey([msgspec.structs.replace(manifest, layout=layout)])
    assert not status.is_complete


def test_manifests_travel_as_text(tmp_path):
    plan = plan_of(replicas=2)
    cluster = Cluster(plan, tmp_path)
    cluster.save(Version(3, 1), random_state(plan))
    manifests = cluster.manifests()
    text = msgspec.json.encode(manifests)
    assert msgspec.json.decode(text, type=list[Manifest]) == manifests
    with pytest.raises(HoldfastError, match="is torn"):
        msgspec.structs.replace(manifests[0], checksums={}).check()
    cluster.close()
