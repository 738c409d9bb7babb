"""A model of the barriers of the fused kernel's rings (src/cuda/sm90), run under random schedules.

A GPU runs one schedule in a million that matters; this runs thousands that are all different. Every warp, copy, send
and remote arrival is an agent: a generator that yields where others may run, or what it waits for. Speeds differ by a
thousand and change on the way. Barriers follow the PTX ISA's rule of parities: a wait for a parity is over when the
phase under way has the other one, which is also so a whole lap too early. Found are deadlocks, arrivals that a phase
does not expect, tiles that are read before they are there or written while somebody reads them, and copies or arrivals
under way to a block that has left.

Memory is one for all: what fences order is not modelled. Who changes a barrier in stage.cuh, intra.cuh, consume.cuh,
columns.cuh or apart.cuh changes the agent of that name here. `without` leaves out what a ring cannot do without, for
tests of the model itself.
"""

import random


class ProtocolError(Exception):
    pass


class Barrier:
    def __init__(self, name, count):
        self.name, self.count = name, count
        self.pending, self.bytes, self.phase = count, 0, 0

    def arrive(self, times=1, expects=0):
        if self.pending < times:
            raise ProtocolError(f"{self.name}: more arrivals than a phase has")
        self.bytes += expects
        self.pending -= times
        self._settle()

    def complete(self, count):
        self.bytes -= count
        self._settle()

    def _settle(self):
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count

    def over(self, parity):
        return lambda: self.phase % 2 != parity % 2

    def idle(self):
        return self.pending == self.count and self.bytes == 0


class NamedBarrier:
    def __init__(self, count):
        self.count, self.waiting, self.rounds = count, 0, 0

    def sync(self):
        self.waiting += 1
        if self.waiting == self.count:
            self.waiting = 0
            self.rounds += 1
            return None
        round_ = self.rounds
        return lambda: self.rounds != round_


class Tile:
    def __init__(self):
        self.content, self.writes = None, 0

    def write(self, content):
        self.content = content
        self.writes += 1

    def read(self, wanted, who):
        """An agent's reading, which takes a while."""
        if self.content != wanted:
            raise ProtocolError(f"{who} reads {self.content} where {wanted} should be")
        writes = self.writes
        yield None
        if self.writes != writes:
            raise ProtocolError(f"{who} reads {wanted} while it is overwritten by {self.content}")


class World:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.agents = []

    def spawn(self, name, generator):
        self.agents.append([generator, None, name, self._speed()])

    def _speed(self):
        return 10 ** self.random.uniform(-3, 0)

    def run(self):
        while self.agents:
            ready = [agent for agent in self.agents if agent[1] is None or agent[1]()]
            if not ready:
                raise ProtocolError("deadlock of " + ", ".join(agent[2] for agent in self.agents))
            agent = self.random.choices(ready, [agent[3] for agent in ready])[0]
            try:
                agent[1] = next(agent[0])
            except StopIteration:
                self.agents.remove(agent)
            if self.random.random() < 0.01:
                agent[3] = self._speed()


RAW, MADE = "raw", "made"


def copies(barrier, count, tiles, content, check=lambda: None):
    """The copy engine's work: tile after tile, then the bytes on the barrier."""
    for tile in tiles:
        yield None
        check()
        tile.write(content)
    yield None
    barrier.complete(count)


def pair(chunks, seed, stages=5, ahead=3, without=()):
    """Two blocks that share a head: Variant<1>."""
    world, blocks = World(seed), []
    rows = [f"x{w}" for w in range(8)]  # what each of eight column warps transforms in place
    written = [*rows, "scales", "T", "M2", "M3", "F2", "F3"]  # a unit of bytes each, but for v what full[] counts

    class Block:
        def __init__(self, rank):
            self.rank, self.left, self.running = rank, False, 16
            ring = range(stages)
            self.raw = [Barrier(f"raw[{s}] of {rank}", 1) for s in ring]
            self.columns = [Barrier(f"columns[{s}] of {rank}", 8) for s in ring]
            self.bits = [Barrier(f"bits[{s}] of {rank}", 1) for s in ring]
            self.full = [Barrier(f"full[{s}] of {rank}", 4) for s in ring]
            self.empty = [Barrier(f"empty[{s}] of {rank}", 4 + 4) for s in ring]
            self.tiles = [{name: Tile() for name in [*written, "bits", "v"]} for _ in ring]
            self.group, self.two_warps = NamedBarrier(8), NamedBarrier(2)

        def other(self):
            return blocks[1 - self.rank]

        def present(self):
            if self.left:
                raise ProtocolError(f"something is under way to block {self.rank}, which has left")

    def own_phase(c):
        return c // (2 * stages)

    def load(block, c):
        s, tiles = c % stages, block.tiles[c % stages]
        block.raw[s].arrive(expects=9)
        world.spawn("rows", copies(block.raw[s], 8, [tiles[name] for name in rows], (c, RAW), block.present))
        world.spawn("values", copies(block.raw[s], 1, [tiles["v"]], (c, RAW), block.present))

    def load_foreign(block, c):
        s = c % stages
        block.bits[s].arrive(expects=1)
        block.full[s].arrive(4, expects=len(written) + 1)
        world.spawn("values", copies(block.full[s], 1, [block.tiles[s]["v"]], (c, RAW), block.present))

    def send(block, names, barriers, c):
        s, other = c % stages, block.other()

        def transfer():
            for name in names:
                yield None
                block.present()
                other.present()
                yield from block.tiles[s][name].read((c, MADE), f"the sending of {name}")
                other.tiles[s][name].write((c, MADE))
            yield None
            barriers[s].complete(len(names))

        world.spawn(f"sending of {names[0]} of {c}", transfer())

    def columns(block, warp):
        for c in range(block.rank, chunks, 2):
            s, tiles = c % stages, block.tiles[c % stages]
            yield block.raw[s].over(own_phase(c))
            for name in rows:
                yield from tiles[name].read((c, RAW), "columns")
            yield block.group.sync()
            tiles[rows[warp]].write((c, MADE))
            yield None
            if warp == 0:
                tiles["scales"].write((c, MADE))
                tiles["bits"].write((c, MADE))
                yield None
            block.columns[s].arrive()
            if warp == 0:
                yield block.columns[s].over(own_phase(c))
                send(block, ["bits"], block.other().bits, c)
                send(block, [*rows, "scales"], block.other().full, c)
            yield None

    def intra(block, warp):
        for c in range(block.rank, chunks, 2):
            s, tiles = c % stages, block.tiles[c % stages]
            yield block.columns[s].over(own_phase(c))
            for name in [*rows, "scales"]:
                yield from tiles[name].read((c, MADE), "intra")
            made = []
            if warp < 2:
                yield block.two_warps.sync()
                made = ["T"] if warp == 1 else []
            else:
                if c > 0:
                    before = (c - 1) % stages
                    yield block.bits[before].over(own_phase(c - 1))
                    yield from block.tiles[before]["bits"].read((c - 1, MADE), "intra, of the last chunk's tail,")
                yield from tiles["bits"].read((c, MADE), "intra")
                made = [f"M{warp}", f"F{warp}"]
            for name in made:
                tiles[name].write((c, MADE))
                yield None
            block.full[s].arrive()
            yield None
            for name in made:
                send(block, [name], block.other().full, c)
            if warp == 0:
                for copied, ask in ((c + ahead, load_foreign), (c + ahead + 1, load)):
                    if ask == load and "full before load" not in without:
                        yield block.full[s].over(c // stages)
                    if copied < chunks:
                        if copied >= stages:
                            yield block.empty[copied % stages].over(copied // stages - 1)
                        ask(block, copied)
            yield None

    def consumer(block):
        for c in range(chunks):
            s, tiles = c % stages, block.tiles[c % stages]
            yield block.full[s].over(c // stages)
            yield from tiles["v"].read((c, RAW), "a consumer")
            for name in written:
                yield from tiles[name].read((c, MADE), "a consumer")
            block.empty[s].arrive()
            yield None
            if c + stages < chunks or "silence at the end" in without:

                def arrival(s=s):
                    yield None
                    block.other().present()
                    block.other().empty[s].arrive()

                world.spawn("remote arrival", arrival())
        last = chunks - 1
        if last >= 0:
            if last % 2 != block.rank and "bits of the last chunk" not in without:
                yield block.bits[last % stages].over(own_phase(last))
            yield from block.tiles[last % stages]["bits"].read((last, MADE), "a consumer, of the last tail,")

    def until_all_leave(block, generator):
        yield from generator
        block.running -= 1
        yield lambda: all(b.running == 0 for b in blocks)
        block.left = True

    blocks += [Block(0), Block(1)]
    for block in blocks:
        for c in range(min(chunks, ahead + block.rank)):
            (load if c % 2 == block.rank else load_foreign)(block, c)
    for block in blocks:
        for warp in range(8):
            world.spawn(f"columns {block.rank}", until_all_leave(block, columns(block, warp)))
        for warp in range(4):
            world.spawn(f"intra {block.rank}", until_all_leave(block, intra(block, warp)))
            world.spawn(f"consumer {block.rank}", until_all_leave(block, consumer(block)))
    world.run()
    for block in blocks:
        for barrier in [*block.raw, *block.columns, *block.bits, *block.full]:
            if not barrier.idle():
                raise ProtocolError(f"{barrier.name} is left in the middle of a phase")


def maker(items, seed, stages=5, groups=3, storers=3, without=()):
    """A maker's block. Returns the items in the order in which their images were complete."""
    world, complete, ring = World(seed), [], range(stages)
    raw = [Barrier(f"raw[{s}]", 1) for s in ring]
    columns_ready = [Barrier(f"columns[{s}]", 4) for s in ring]
    full = [Barrier(f"full[{s}]", 4) for s in ring]
    empty = [Barrier(f"empty[{s}]", 1) for s in ring]
    rows = [f"x{w}" for w in range(4)]
    tiles = [{name: Tile() for name in [*rows, "T", "M"]} for _ in ring]
    named, two_warps = [NamedBarrier(4) for _ in range(groups)], NamedBarrier(2)

    def ask():
        for i in range(items):
            s = i % stages
            if i >= stages:
                yield empty[s].over(i // stages - 1)
            raw[s].arrive(expects=1)
            world.spawn("rows", copies(raw[s], 1, [tiles[s][name] for name in rows], (i, RAW)))
            yield None

    def columns(group, warp):
        for i in range(group, items, groups):
            s = i % stages
            if i >= stages and "wait for the other group" not in without:
                yield columns_ready[s].over(i // stages - 1)
            yield raw[s].over(i // stages)
            for name in rows:
                yield from tiles[s][name].read((i, RAW), "columns")
            yield named[group].sync()
            tiles[s][rows[warp]].write((i, MADE))
            yield None
            columns_ready[s].arrive()
            yield None

    def intra(warp):
        for i in range(items):
            s = i % stages
            yield columns_ready[s].over(i // stages)
            for name in rows:
                yield from tiles[s][name].read((i, MADE), "intra")
            if warp < 2:
                yield two_warps.sync()
            if warp in (1, 2):
                tiles[s]["T" if warp == 1 else "M"].write((i, MADE))
                yield None
            full[s].arrive()
            yield None

    def store(storer):
        for i in range(storer, items, storers):
            s = i % stages
            yield full[s].over(i // stages)
            for name in [*rows, "T", "M"]:
                yield from tiles[s][name].read((i, MADE), "a store")
            empty[s].arrive()
            yield None
            complete.append(i)

    world.spawn("asking", ask())
    for group in range(groups):
        for warp in range(4):
            world.spawn(f"columns {group}", columns(group, warp))
    for warp in range(4):
        world.spawn("intra", intra(warp))
    for storer in range(storers):
        world.spawn("storing", store(storer))
    world.run()
    return complete


def work(lengths, heads, makers):
    """(run, chunk) of every maker in its order: class Work. lengths: chunks of each sequence, `heads` runs each."""
    runs, end = len(lengths) * heads, max(lengths, default=0)
    for first in range(makers if runs else 0):
        run, chunk = first % runs, first // runs
        while chunk < end:
            if chunk < lengths[run // heads]:
                yield run, chunk
            run += makers
            while run >= runs:
                run -= runs
                chunk += 1
