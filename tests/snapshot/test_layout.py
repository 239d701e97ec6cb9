"""Layouts: where entries lie, and what is wrong with some."""

import msgspec
import pytest
import xxhash

from holdfast.errors import HoldfastError
from holdfast.snapshot.layout import (
    ALIGNMENT,
    PARITY,
    ArenaLayout,
    LayoutEntry,
    ParityRow,
    Version,
    chunk_checksums,
    entry_key,
)


def entry(key, num_bytes, kind="parameter"):
    return LayoutEntry(key, key, kind, ((0, num_bytes),), "uint8", num_bytes)


def test_entries_are_aligned_and_do_not_overlap():
    layout = ArenaLayout((entry("a", 5), entry("b", 256), entry("c", 257), entry("d", 0)))
    assert layout.offsets == {"a": 0, "b": 256, "c": 512, "d": 1024}
    assert layout.slot_bytes == 1024
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets.values())


def test_what_parity_stands_for_has_checksums_but_no_room():
    covered = entry("x", 100)
    layout = ArenaLayout(
        (entry("a", 100), entry("p", 100, PARITY)),
        chunk_bytes=64,
        rows=(ParityRow("p", ((covered,),)),),
    )
    layout.check()
    assert [e.key for e in layout.checked] == ["a", "p", "x"]
    assert layout.num_checksums == 6
    assert "x" not in layout.offsets


def test_contradictions_are_refused():
    with pytest.raises(HoldfastError, match=r"two entries of n0\.g0 are 'a'"):
        ArenaLayout((entry("a", 1), entry("a", 1)), worker="n0.g0").check()
    with pytest.raises(HoldfastError, match="has -1 bytes"):
        ArenaLayout((entry("a", -1),)).check()
    with pytest.raises(HoldfastError, match="no entry to be stored in"):
        ArenaLayout((entry("a", 1),), rows=(ParityRow("p", ()),)).check()
    with pytest.raises(HoldfastError, match="no entry to be stored in"):
        ArenaLayout((entry("a", 1),), rows=(ParityRow("a", ()),)).check()
    with pytest.raises(HoldfastError, match="2 to 5 slots, not 6"):
        ArenaLayout((), num_slots=6).check()


def test_a_layout_is_its_text():
    layout = ArenaLayout(
        (entry("a", 5),), worker="n0.g0", rows=(ParityRow("p", ((entry("b", 1),),)),)
    )
    again = msgspec.json.decode(msgspec.json.encode(layout), type=ArenaLayout)
    assert again == layout
    assert again.digest == layout.digest
    assert again.digest != msgspec.structs.replace(layout, worker="n0.g1").digest


def test_keys_name_tensor_box_and_kind():
    assert entry_key("block.0.wq", ((0, 4), (2, 8)), "exp_avg") == "block.0.wq|0:4,2:8|exp_avg"
    assert entry_key("scale", (), "parameter") == "scale||parameter"


def test_checksums_by_chunk():
    data = bytes(range(100))
    expected = [xxhash.xxh3_64_intdigest(data[n : n + 40]) for n in (0, 40, 80)]
    assert chunk_checksums(memoryview(data), 40) == expected
    assert chunk_checksums(memoryview(b""), 40) == []


def test_versions_are_ordered_by_history():
    versions = [Version(9, 1), Version(5, 2), Version(6, 2), Version(10, 0)]
    assert sorted(versions, key=lambda version: version.age) == [
        Version(10, 0),
        Version(9, 1),
        Version(5, 2),
        Version(6, 2),
    ]
    assert str(Version(9, 1)) == "step 9 (epoch 1)"
