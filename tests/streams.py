"""Process replay: the engine's events, before and after a change that must not change them.

    python tests/streams.py record streams.json [TRACE ...]
    python tests/streams.py compare streams.json [TRACE ...]

Plays some hundred random traces, made-up training steps and the trace files that are named (`coop
trace NETWORK`) under every policy, with and without a tier to swap to, and keeps a digest of every
hundred events. `compare` says where the first event differs.
"""

import argparse
import hashlib
import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import random_traces
import step_traces
from coop.policies import POLICIES
from coop.simulate.player import Player
from coop.trace import Trace
from coop.trace.formats import read_any

RANDOM = 150
RATIOS = (0.9, 0.6, 0.4)
CHUNK = 100
"""Events for each digest."""


def traces(files: list[Path]) -> Iterator[tuple[str, Trace, dict[str, Any]]]:
    """Each with switches that suit its sizes."""
    for seed in range(RANDOM):
        rng = random.Random(seed)
        code = rng.randbytes(8 * rng.randint(20, 120))
        yield f"random {seed}", random_traces.build(code, views_of_several=seed % 2 == 0), {"tiny": 0, "alignment": 1}
    yield "transformer", step_traces.transformer(), {}
    yield "convolutions", step_traces.convolutions(), {}
    for file in files:
        yield file.stem, read_any(file), {}


def streams(files: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, trace, switches in traces(files):
        player = Player(trace)
        for policy, ratio, swap in itertools.product(POLICIES, RATIOS, (False, True)):
            played = player.play(ratio, policy, events=True, steps=2, swap=swap, **switches)
            events = [
                (e.kind, e.storage, e.offset, e.bytes, repr(e.time), "" if e.kind == "search" else repr(e.value))
                for e in played.events
            ]  # the duration of a search differs each time
            yield (
                f"{name}, {policy}, {ratio}{', swap' if swap else ''}",
                {"status": played.status, "chunks": digests(events)},
            )


def digests(events: list[Any]) -> list[str]:
    return [
        hashlib.blake2b(repr(events[at : at + CHUNK]).encode(), digest_size=8).hexdigest()
        for at in range(0, len(events), CHUNK)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("traces", type=Path, nargs="*")
    arguments = parser.parse_args()
    now = dict(streams(arguments.traces))
    events = CHUNK * sum(len(stream["chunks"]) for stream in now.values())
    if arguments.what == "record":
        arguments.file.write_text(json.dumps(now))
        print(f"{len(now):,} streams of about {events:,} events")
        return 0
    before = json.loads(arguments.file.read_text())
    different = [name for name in now.keys() | before.keys() if now.get(name) != before.get(name)]
    for name in sorted(different)[:20]:
        old, new = before.get(name), now.get(name)
        if old and new:
            pairs = itertools.zip_longest(old["chunks"], new["chunks"])
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
            print(
                f"{name}: {old['status']}, now {new['status']}; differs within {CHUNK} events after event {CHUNK * at}"
            )
        else:
            print(f"{name}: only {'now' if new else 'before'}")
    print(f"{len(now):,} streams of about {events:,} events, {len(different)} of them different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
