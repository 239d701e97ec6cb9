"""Does a large token file take more memory than a small one?

Processes of their own read the rows of micro-batches at random steps, as a worker does: windows in
shuffled order, all over the file. In every round one reads a small file, one a large file (10 GB;
`--quick`: 2 GB; most of it holes), and one the small file again, for the A/A band. Compared is the
peak of the resident memory, which a mapped file would raise by every page that was ever touched.
The time of a micro-batch stands beside it.

Goal: the upper bound (95 %) of the median ratio of peak memory, large to small, is at most 1.02
plus the A/A band.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from _common import Goal, compare, finish, parse_args, print_table

SMALL_BYTES = 16 << 20
READ = """
import json, random, resource, sys, time
from pathlib import Path
from holdfast.data.documents import BareTokens
from holdfast.data.order import RowOrder
from holdfast.data.rows import Windows
from holdfast.data.token_file import open_token_file

path, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rows = Windows(BareTokens(open_token_file(path, "uint16")), 1024)
order, drawn = RowOrder([rows.num_rows], [1.0], seed), random.Random(seed)
start = time.perf_counter()
for _ in range(count):
    first = 8 * drawn.randrange(10**9)
    for number in range(first, first + 8):
        rows.row(order(number)[1])
seconds = (time.perf_counter() - start) / count
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak": peak, "seconds": seconds, "rows": rows.num_rows}))
"""


def read(path: Path, count: int, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-c", READ, str(path), str(count), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    args = parse_args(__doc__)
    large_bytes = (2 if args.quick else 10) * 10**9
    rounds, count = (6, 200) if args.quick else (12, 1000)
    found: dict[str, list[dict[str, Any]]] = {"small": [], "large": [], "small again": []}
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name.split()[0]}.bin" for name in found}
        for name, size in (("small", SMALL_BYTES), ("large", large_bytes)):
            with paths[name].open("wb") as file:
                file.truncate(size)
        names = list(found)
        for number in range(rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                found[name].append(read(paths[name], count, number))
    peaks = {name: [one["peak"] for one in told] for name, told in found.items()}
    ratio = compare(peaks["large"], peaks["small"])
    band = compare(peaks["small again"], peaks["small"])
    width = max(band.high - 1, 1 - band.low)
    print_table(
        f"{rounds} rounds of {count} micro-batches of 8 x 1024 tokens",
        [
            {
                "file": name,
                "rows": told[0]["rows"],
                "peak memory, MB": round(median(peaks[name]) / 1e6, 1),
                "a micro-batch, ms": round(1e3 * median(one["seconds"] for one in told), 3),
            }
            for name, told in found.items()
        ],
    )
    goal = Goal("peak memory, large / small (upper bound)", ratio.high, 1.02 + width)
    measured = {"ratio": asdict(ratio), "band": asdict(band), "found": found}
    finish([goal], args.json, measured)


if __name__ == "__main__":
    main()
