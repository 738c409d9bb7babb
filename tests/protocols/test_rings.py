"""The rings of the fused kernel hold under random schedules, and the model finds what breaks them."""

import random
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from rings import ProtocolError, maker, pair, work

SM90 = Path(__file__).parents[2] / "src/cuda/sm90"
SCHEDULES = 60


def constant(file, pattern):
    found = re.search(pattern, (SM90 / file).read_text())
    assert found, f"{file} has no {pattern}: the model must follow what it says now"
    return int(found[1])


STAGES = constant("stage.cuh", r"kStages = kSlices == 2 \? 4 : (\d+)")
AHEAD = constant("stage.cuh", r"kCopiedAhead = (\d+);")
MAKER = {
    "stages": constant("apart.cuh", r"struct Maker \{\s*static constexpr int kSlices = 1, kStages = (\d+)"),
    "groups": constant("apart.cuh", r"kColumnGroups = (\d+)"),
    "storers": constant("apart.cuh", r"kStorers = (\d+)"),
}


def breaks(run):
    """Of SCHEDULES, those that the model finds broken."""
    count = 0
    for seed in range(SCHEDULES):
        try:
            run(seed)
        except ProtocolError:
            count += 1
    return count


@pytest.mark.parametrize("chunks", [*range(13), 21])
def test_a_pair(chunks):
    for seed in range(SCHEDULES // 4):
        pair(chunks, 1000 * chunks + seed, STAGES, AHEAD)


@pytest.mark.parametrize("items", [0, 1, 4, 5, 6, 7, 11, 31])
def test_a_maker(items):
    for seed in range(SCHEDULES // 4):
        assert sorted(maker(items, 1000 * items + seed, **MAKER)) == list(range(items))


@pytest.mark.parametrize("missing", ["full before load", "silence at the end", "bits of the last chunk"])
def test_a_pair_cannot_do_without(missing):
    assert breaks(lambda seed: pair(12, seed, STAGES, AHEAD, without=[missing])) > 0


def test_a_maker_cannot_do_without_its_guard():
    assert breaks(lambda seed: maker(31, seed, **MAKER, without=["wait for the other group"])) > SCHEDULES // 8


def test_a_pair_does_not_ask_further_ahead():
    assert breaks(lambda seed: pair(12, seed, STAGES, AHEAD + 2)) > 0


def test_makers_share_out_every_chunk_once():
    chance = random.Random(7)
    for _ in range(500):
        lengths = [chance.choice([0, 0, 1, 2, 3, 7, 40]) for _ in range(chance.randint(0, 12))]
        heads, makers = chance.randint(1, 5), chance.randint(1, 130)
        everything = [
            (n * heads + h, c) for n, length in enumerate(lengths) for h in range(heads) for c in range(length)
        ]
        assert sorted(work(lengths, heads, makers)) == sorted(everything)
