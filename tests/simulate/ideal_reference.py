"""The rules of the ideal simulator in plain Python: slow, recursive, without caches.

Two readings of what is evicted around a storage. "kept" is the rule: sets of storages that are
merged when one is evicted, and walked again, at once, for what an op makes resident and for what
lies at the edge of that. "walked" walks from each storage whenever it is asked for its score; where
nothing waits for two inputs, the two are the same.
"""

from math import inf

from coop.trace import Hold, Op, Release, Source


class Thrash(Exception):
    pass


class Storage:
    def __init__(self, size):
        self.size = size
        self.tensors = []
        self.references = 0
        self.locks = 0
        self.resident = self.pinned = False
        self.touched = None
        self.region = {"up": (set(), set(), 0), "down": (set(), set(), 0)}  # inside, edge, cost
        self.component = None

    @property
    def cost(self):
        return sum(op.cost for op in {id(t.op): t.op for t in self.tensors}.values())

    def neighbours(self, way):
        tensors = [u for t in self.tensors for u in (t.op.inputs if way == "up" else t.readers)]
        return {t.storage for t in tensors} - {self}


class Tensor:
    def __init__(self, op, storage):
        self.op = op
        self.storage = storage
        self.defined = False
        self.readers = []  # outputs of the ops that read it
        storage.tensors.append(self)
        storage.references += 1


class RunningOp:
    def __init__(self, cost, scratch, inputs):
        self.cost, self.scratch, self.inputs, self.outputs, self.sizes = cost, scratch, inputs, [], []


class Reference:
    def __init__(self, trace, order, budget, policy, limit=2.0, reading="kept"):
        self.trace, self.order, self.policy, self.reading = trace, order, policy, reading
        self.peak, self.cost = baseline(trace)
        self.budget = int(self.peak * budget) if isinstance(budget, float) else budget
        self.patience = self.cost * (limit - 1)
        self.clock, self.used, self.highest = 1, 0, 0
        self.recomputed = self.evictions = self.rematerialisations = 0
        self.pool = []
        self.waiting = set()  # storages of the op that waits, not yet computed

    def play(self):
        status = "ok"
        try:
            self.steps()
        except MemoryError:
            status = "out_of_memory"
        except Thrash:
            status = "thrash"
        return {
            "status": status,
            "overhead": self.clock / self.cost if self.cost else 1.0,
            "budget": self.budget,
            "peak": self.highest,
            "evictions": self.evictions,
            "rematerialisations": self.rematerialisations,
            "baseline_peak": self.peak,
            "baseline_cost": self.cost,
        }

    def steps(self):
        tensors = []
        for instruction in self.trace.instructions:
            match instruction:
                case Source(_, size):
                    op = RunningOp(0, 0, [])
                    self.give_outputs(op, [(size, None)])
                    tensors += op.outputs
                    self.first_run(op)
                    self.pin(op.outputs[0])
                case Op():
                    op = RunningOp(instruction.cost, instruction.scratch, [tensors[t] for t in instruction.inputs])
                    new = []
                    for output in instruction.outputs:
                        home = op.inputs[output.alias].storage if output.alias >= 0 else None
                        if output.alias in instruction.writes:
                            new.append((home.size, None))  # copy on write
                        else:
                            new.append((output.bytes, home))
                    self.give_outputs(op, new)
                    tensors += op.outputs
                    self.first_run(op)
                case Hold(tensor):
                    tensors[tensor].storage.references += 1
                case Release(tensor):
                    storage = tensors[tensor].storage
                    storage.references -= 1
                    if not storage.references and storage.resident and not storage.pinned:
                        self.evict(storage)
        for tensor in self.order:
            if not tensors[tensor].defined:
                self.run(tensors[tensor].op, tensors[tensor], again=True)
            self.pin(tensors[tensor])

    def give_outputs(self, op, new):
        for size, home in new:
            op.outputs.append(Tensor(op, home or Storage(size)))
            op.sizes.append(0 if home else size)
        for tensor in op.inputs:
            tensor.readers += op.outputs
        for tensor in op.outputs:
            if tensor.storage.tensors == [tensor]:
                tensor.storage.component = Component(0)

    def first_run(self, op):
        self.waiting = {t.storage for t in op.outputs if not t.storage.resident and t.storage.tensors[0] is t}
        self.run(op, op.outputs[0], again=False)
        self.waiting = set()
        for tensor in op.outputs:
            tensor.storage.touched = self.clock

    def run(self, op, wanted, again):
        for tensor in op.inputs:
            tensor.storage.touched = self.clock
        missing = [tensor for tensor in op.inputs if not tensor.defined]
        for tensor in op.inputs:
            if tensor.defined:
                self.lock(tensor.storage)
        for tensor in missing:
            if not tensor.defined:
                self.run(tensor.op, tensor, again=True)
            self.lock(tensor.storage)
        while self.used + sum(op.sizes) + op.scratch > self.budget:
            if not self.pool:
                raise MemoryError
            self.evictions += 1
            self.evict(self.choose())
        self.compute(op, wanted, again)
        for tensor in op.inputs:
            self.unlock(tensor.storage)
        if self.recomputed > self.patience:
            raise Thrash

    def compute(self, op, wanted, again):
        self.clock += op.cost
        self.highest = max(self.highest, self.used + sum(op.sizes) + op.scratch)
        self.recomputed += op.cost * again
        arrived = []
        for tensor in [t for t in op.outputs if t is not wanted] + [wanted]:
            if not tensor.defined:
                self.used += op.sizes[op.outputs.index(tensor)]
            if not tensor.storage.resident:
                arrived.append(tensor.storage)
            tensor.defined = tensor.storage.resident = True
        self.pool += arrived
        self.rematerialisations += len(arrived) * again
        self.waiting -= set(arrived)
        for storage in arrived:
            self.walk_again(storage, "up")
            self.walk_again(storage, "down")
            storage.component.root().cost -= storage.cost
            storage.component = None
        for way, back in (("up", "down"), ("down", "up")):
            for other in {o for storage in arrived for o in storage.region[way][1]}:
                self.walk_again(other, back)

    def evict(self, storage):
        self.pool.remove(storage)
        self.used -= storage.size
        storage.resident = False
        for tensor in storage.tensors:
            tensor.defined = False
        for way, back in (("up", "down"), ("down", "up")):
            inside, edge, _ = storage.region[back]
            for other in storage.region[way][1]:
                their_inside, their_edge, cost = other.region[back]
                new = (inside - their_inside) | {storage}
                cost += sum(s.cost for s in new)
                other.region[back] = (their_inside | new, (their_edge - {storage}) | edge, cost)
        storage.region = {"up": (set(), set(), 0), "down": (set(), set(), 0)}
        storage.component = Component(storage.cost)
        for other in storage.neighbours("up") | storage.neighbours("down"):
            if not other.resident:
                other.component.join(storage.component)

    def walk_again(self, storage, way):
        storage.region[way] = walk(storage, way, ignored=set())

    def around(self, storage, way):
        if self.reading == "kept":
            return storage.region[way][2]
        return walk(storage, way, ignored=self.waiting)[2]

    def score(self, storage):
        cost, weight = storage.cost, storage.size * (self.clock - storage.touched)
        match self.policy:
            case "lru":
                return storage.touched
            case "msps":
                cost, weight = cost + self.around(storage, "up"), storage.size
            case "dtr":
                cost += self.around(storage, "up") + self.around(storage, "down")
            case "dtr-eq":
                evicted = {n for way in ("up", "down") for n in storage.neighbours(way) if not n.resident}
                cost += sum(component.cost for component in {n.component.root() for n in evicted})
        return cost / weight if weight else inf

    def choose(self):
        best, least = None, inf
        for storage in self.pool:
            score = self.score(storage)
            if score <= least:
                best, least = storage, score
            if score == 0:
                break
        return best

    def lock(self, storage):
        if not storage.locks:
            self.pool.remove(storage)
        storage.locks += 1

    def unlock(self, storage):
        storage.locks -= 1
        if not storage.locks:
            self.pool.append(storage)

    def pin(self, tensor):
        if not tensor.storage.pinned:
            self.lock(tensor.storage)
            tensor.storage.pinned = True


def walk(storage, way, ignored):
    """The evicted storages reached through evicted ones, the resident ones where that ends, and the
    cost of the former."""
    inside, edge, stack = set(), set(), [storage]
    while stack:
        for other in stack.pop().neighbours(way) - inside - ignored - {storage}:
            if other.resident:
                edge.add(other)
            else:
                inside.add(other)
                stack.append(other)
    return inside, edge, sum(s.cost for s in inside)


class Component:
    """Of evicted neighbours: a tree, with the cost at its root."""

    def __init__(self, cost):
        self.cost = cost
        self.parent = None

    def root(self):
        return self.parent.root() if self.parent else self

    def join(self, other):
        ours, theirs = self.root(), other.root()
        if ours is not theirs:
            ours.parent = theirs
            theirs.cost += ours.cost


def baseline(trace):
    """Peak and time without a limit."""
    storage, sizes, references = [], [], []
    used = peak = cost = 0
    for instruction in trace.instructions:
        match instruction:
            case Source(_, size):
                storage.append(len(sizes))
                sizes.append(size)
                references.append(1)
                used += size
                peak = max(peak, used)
            case Op():
                cost += instruction.cost
                for output in instruction.outputs:
                    home = storage[instruction.inputs[output.alias]] if output.alias >= 0 else None
                    if home is None or output.alias in instruction.writes:
                        sizes.append(output.bytes if home is None else sizes[home])
                        references.append(0)
                        home = len(sizes) - 1
                    if not references[home]:
                        used += sizes[home]
                    references[home] += 1
                    storage.append(home)
                peak = max(peak, used + instruction.scratch)
            case Hold(tensor):
                references[storage[tensor]] += 1
            case Release(tensor):
                references[storage[tensor]] -= 1
                if not references[storage[tensor]]:
                    used -= sizes[storage[tensor]]
    return peak, cost


def reference(trace, order, budget, policy, limit=2.0, reading="kept"):
    return Reference(trace, order, budget, policy, limit, reading).play()
