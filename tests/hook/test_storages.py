"""Storage objects: how one is used decides whether its tensor may still be evicted and moved."""

import copy
import io
import pickle

import pytest
import torch

import coop
from same import assert_same, evict_all

ROOM = 2 << 20


def pressure() -> None:
    evict_all(ROOM)


def evicted(memory: coop.Memory, times: float = 2.0) -> torch.Tensor:
    tensor = torch.arange(65536.0).mul(times)
    pressure()
    assert memory.state(tensor) == "evicted"
    return tensor


def test_asking_a_storage_for_its_size_brings_nothing_back():
    with coop.budget(ROOM) as memory:
        tensor = evicted(memory)
        storage = tensor.untyped_storage()
        assert storage.nbytes() == storage.size() == len(storage) == 4 * 65536
        assert storage.resizable() and storage.device.type == "cpu"
        assert memory.state(tensor) == "evicted"
        assert tensor[3] == 6


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda storage: storage[4], id="one byte"),
        pytest.param(lambda storage: storage.is_shared(), id="is_shared"),
        pytest.param(lambda storage: storage.filename, id="filename"),
        pytest.param(lambda storage: storage.clone(), id="clone"),
        pytest.param(lambda storage: bytes(storage.tolist()), id="tolist"),
        pytest.param(lambda storage: torch.save(storage, io.BytesIO()), id="save"),
        pytest.param(lambda storage: torch.UntypedStorage(storage.nbytes()).copy_(storage), id="copy to another"),
    ],
)
def test_reading_a_storage_brings_it_back_and_it_may_leave_again(read):
    plain = torch.arange(65536.0).mul(2)
    expected = read(plain.untyped_storage())
    with coop.budget(ROOM) as memory:
        tensor = evicted(memory)
        got = read(tensor.untyped_storage())
        if isinstance(expected, torch.UntypedStorage):
            got, expected = bytes(got), bytes(expected)
        assert got == expected
        pressure()
        assert memory.state(tensor) == "evicted"
        assert_same(plain, tensor.clone())


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda storage: storage.fill_(1), id="fill_"),
        pytest.param(lambda storage: storage.copy_(torch.zeros(65536).untyped_storage()), id="copy_"),
        pytest.param(lambda storage: storage.__setitem__(0, 7), id="one byte"),
        pytest.param(lambda storage: storage[:4].fill_(9), id="a slice"),
    ],
)
def test_writing_to_a_storage_is_noticed(write):
    def program(memory):
        tensor = torch.arange(65536.0).mul(2) if memory is None else evicted(memory)
        before = tensor.add(1)
        write(tensor.untyped_storage())
        if memory is not None:
            pressure()
            assert memory.state(tensor) == "exposed"
        return tensor.clone(), before.clone(), tensor.add(1)

    expected = program(None)
    with coop.budget(ROOM) as memory:
        assert_same(expected, program(memory))


def test_resizing_a_storage():
    """As FSDP does: a parameter's memory is freed, and comes back with other bytes."""

    def program(memory):
        found = []
        parameter = torch.arange(65536.0).mul(2)
        for round in range(4):
            made = parameter.mul(3)
            if memory is not None and round % 2:
                pressure()
            parameter.untyped_storage().resize_(0)
            found.append(made.add(round))
            parameter.untyped_storage().resize_(4 * 65536)
            parameter.copy_(torch.arange(65536.0).add(round))
            found.append(made.clone())
        parameter.untyped_storage().resize_(8 * 65536)
        parameter.untyped_storage().resize_(4 * 1000)
        found.append(parameter[:1000].clone())
        return found

    expected = program(None)
    with coop.budget("4MiB", checks=2) as memory:
        assert_same(expected, program(memory))
    assert memory.stats().evictions > 0


def gathered_twice(value, memory):
    """What FSDP does to a parameter: it is filled for the forward pass, emptied, and filled again.
    Returns the tensor made from it, and the bytes of sources at the end."""
    parameter = torch.empty(65536)
    parameter.copy_(torch.arange(65536.0))
    if memory is not None:
        memory.commit(parameter)  # as after a collective
    made = [parameter.mul(i) for i in (2, 3)]
    parameter.untyped_storage().resize_(0)
    if memory is not None:
        pressure()
        assert [memory.state(tensor) for tensor in made] == 2 * ["evicted"]
    parameter.untyped_storage().resize_(4 * 65536)
    parameter.copy_(torch.arange(65536.0) + value)
    sources = memory.stats().sources if memory is not None else 0
    found = [tensor + parameter for tensor in made]
    parameter.add_(1)  # rule 5: tensors made from the old bytes come back before
    return [*found, *[tensor.clone() for tensor in made], parameter.clone()], sources


@pytest.mark.parametrize(("value", "copies"), [(0, 1), (1, 2)])
def test_a_storage_that_is_emptied_and_filled_with_the_same_bytes_is_one_source(value, copies):
    expected, _ = gathered_twice(value, None)
    with coop.budget(ROOM, checks=2) as memory:
        actual, sources = gathered_twice(value, memory)
        assert_same(expected, actual)
    assert copies * 4 * 65536 <= sources < (copies + 1) * 4 * 65536


def test_a_storage_that_is_emptied_and_dropped_goes_with_what_was_made_from_it():
    with coop.budget(ROOM, checks=2) as memory:
        for _ in range(3):
            parameter = torch.arange(65536.0).add(1)
            memory.commit(parameter)
            made = parameter.mul(2)
            parameter.untyped_storage().resize_(0)
            del parameter
            pressure()
            assert made[3] == 8
            del made
        torch.zeros(1)  # records are dropped between ops
        torch.empty(ROOM - (128 << 10), dtype=torch.uint8)
        assert memory.stats().sources < 4 * 65536


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_is_saved_and_loaded_piece_by_piece(tmp_path, zipped):
    """Model and optimizer do not fit into the budget at once. Afterwards training continues in
    it."""

    def train(model, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(64, 256)).square().sum().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    def program():
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        train(model, optimizer)
        file = tmp_path / "state.pt"
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            file,
            _use_new_zipfile_serialization=zipped,
        )
        train(model, optimizer)
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return train(model, optimizer)

    expected = program()
    with coop.budget("2500KiB", swap="64MiB", swap_least=1) as memory:
        actual = program()
        assert not [p for p in actual if memory.state(p) == "exposed"]
        assert_same(expected, actual)
    assert memory.stats().swaps_out > 0


def test_copies_and_pickles_of_evicted_tensors():
    with coop.budget(ROOM) as memory:
        tensor = evicted(memory)
        assert_same(copy.deepcopy(tensor), torch.arange(65536.0).mul(2))
        pressure()
        assert memory.state(tensor) == "evicted"
        assert_same(pickle.loads(pickle.dumps(tensor)), torch.arange(65536.0).mul(2))
        pressure()
        assert memory.state(tensor) == "evicted"
