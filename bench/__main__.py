"""python -m bench [--only NAME…] [--quick]: measure, print, write bench/results/latest.json."""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable

from sandbox_api.kube import KubeError

from . import commands, operator_latency, peer, report, start, transfer, writes
from .cluster import Bench, BenchError, bench
from .figures import Figure

GROUPS: dict[str, Callable[[Bench], Awaitable[list[Figure]]]] = {
    "operator": operator_latency.measure,
    "peer": peer.measure,
    "writes": writes.measure,
    "commands": commands.measure,
    "transfer": transfer.measure,
    "start": start.measure,
}


async def run(groups: list[str], *, quick: bool) -> list[Figure]:
    """Measure one group after the other; what they say is printed at once."""
    figures: list[Figure] = []
    async with bench(quick=quick) as bed:
        for group in groups:
            began = time.monotonic()
            for figure in await GROUPS[group](bed):
                print(report.line(figure), flush=True)
                figures.append(figure)
            print(f"  ({group}: {time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
            with contextlib.suppress(BenchError):
                await bed.pods_gone()
    return figures


def main() -> int:
    """Returns 1 when a figure misses its bound, 2 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), metavar="NAME", help=", ".join(GROUPS))
    parser.add_argument(
        "--quick", action="store_true", help="few samples: shows that it works, proves nothing"
    )
    options = parser.parse_args()
    groups = [group for group in GROUPS if not options.only or group in options.only]
    try:
        figures = asyncio.run(run(groups, quick=options.quick))
    except (BenchError, KubeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    report.write(report.document(figures, quick=options.quick, groups=groups))
    misses = report.missed(figures)
    for figure in misses:
        print(f"missed: {figure.name}", file=sys.stderr)
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
