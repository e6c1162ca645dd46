"""Device models: rooflines, and what is said about files that are none."""

import pytest
import torch
import torch.distributed as dist
from steps import op

from coop.plan import Paging
from coop.trace import record
from coop.trace.device import Device, known, load
from coop.trace.fake_rank import FakeRank
from coop.trace.interconnect import Interconnect

SIMPLE = Device("simple", False, 64, launch=1e-6, bandwidth=1e9, flops={"float32": 1e12, "float16": 4e12})


def cost_of(step, name):
    trace = record(step, warm_up=0, cost=lambda *call: SIMPLE.cost(*call[:5]))
    return op(trace, name).cost


def test_the_cost_is_launch_and_the_longer_of_flops_and_bytes():
    small, large = torch.ones(8, 8), torch.ones(1000, 1000)
    assert cost_of(lambda: small @ small, "mm") == 1000 + 3 * 256
    compute, traffic = 2 * 1000**3 / 1e12, 12e6 / 1e9
    assert cost_of(lambda: large @ large, "mm") == round(1e9 * (1e-6 + max(compute, traffic)))
    narrow = torch.ones(64, 64, dtype=torch.float16)
    assert cost_of(lambda: narrow @ narrow, "mm") == 1000 + 3 * 64 * 64 * 2


def test_in_place_ops_read_and_write_and_views_and_empty_tensors_are_free():
    x = torch.ones(250)
    assert cost_of(lambda: x.neg_(), "neg_") == 1000 + 2000
    assert cost_of(lambda: x.view(10, 25), "view") == 0
    assert cost_of(lambda: torch.empty(1000), "empty") == 0


def test_expanded_tensors_and_tables_move_only_what_is_looked_at():
    one, table, words = torch.ones(1), torch.ones(10_000, 10), torch.zeros(5, dtype=torch.long)
    assert cost_of(lambda: one.expand(250).neg(), "neg") == 1000 + 4 + 1000
    assert cost_of(lambda: torch.nn.functional.embedding(words, table), "embedding") == 1000 + 200 + 40 + 200


def test_the_backward_of_a_grouped_convolution_is_twice_its_forward():
    fast = Device("fast", True, 512, launch=1e-9, bandwidth=1e18, flops={"float32": 1e9})
    x, weight = torch.ones(2, 64, 8, 8, requires_grad=True), torch.ones(64, 1, 3, 3, requires_grad=True)

    def step():
        torch.conv2d(x, weight, padding=1, groups=64).sum().backward()

    trace = record(step, cost=lambda *call: fast.cost(*call[:5]))
    forward, backward = op(trace, "convolution").cost, op(trace, "convolution_backward").cost
    assert forward == 1 + 2 * 2 * 64 * 64 * 9 and backward == 1 + 2 * (forward - 1)


@pytest.mark.parametrize("name", ["a100", "v100", "cpu"])
def test_devices_come_with_coop(name):
    device = load(name)
    assert name in known() and device.name == name
    assert device.gpu == (name != "cpu") and device.alignment == (512 if device.gpu else 64)
    assert device.flops["float32"] > 1e11 and device.bandwidth > 1e10 and 0 < device.launch < 1e-4


@pytest.mark.parametrize(
    ("name", "flops", "flops_per_joule", "memory"),
    [
        ("mkr1000", 1.667e5, 2.525e6, 0.33),
        ("cortex-m4f", 6.37e6, 5.80e8, 0.33),
        ("raspberry-pi", 2e9, 4.012e7, 0.15),
        ("raspberry-pi-no-cache", 1.203e8, 4.012e7, 0.15),
        ("jetson-tx2", None, None, 0.309),
    ],
)
def test_small_devices_are_those_of_poets_table(name, flops, flops_per_joule, memory):
    device = load(name)
    assert not device.gpu and device.watts is not None and device.paging is not None
    assert device.paging.watts == memory and device.paging.capacity is None
    assert (
        device.paging.in_bandwidth > device.paging.out_bandwidth
        and device.paging.in_latency < device.paging.out_latency
    )
    if flops:
        assert device.flops["float32"] == flops and device.watts == pytest.approx(flops / flops_per_joule, rel=0.001)


GOOD = "gpu = true\nalignment = 512\nlaunch = 5e-6\nbandwidth = 1e12\n[flops]\nfloat32 = 1e13\n"


def test_users_bring_their_own(tmp_path):
    (tmp_path / "mine.toml").write_text(GOOD)
    assert load(tmp_path / "mine.toml") == Device("mine", True, 512, 5e-6, 1e12, {"float32": 1e13})


PAGING = "[paging]\nin_latency = 1e-4\nin_bandwidth = 5e6\nout_latency = 2e-4\nout_bandwidth = 4e6\nwatts = 0.3\n"


def test_energy_and_paging_may_be_said(tmp_path):
    (tmp_path / "mine.toml").write_text("watts = 2\n" + GOOD + PAGING + "capacity = 4096\n")
    device = load(tmp_path / "mine.toml")
    assert device.watts == 2.0 and device.paging == Paging(1e-4, 5e6, 2e-4, 4e6, 0.3, 4096)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu = ", "is not TOML"),
        (GOOD.replace("launch = 5e-6", ""), "does not say 'launch'"),
        (GOOD.replace("float32", "float16"), "does not say 'float32'"),
        (GOOD.replace("[flops]", "[rates]"), "does not say 'flops'"),
        (GOOD.replace("512", "-1"), "alignment = -1; it must be a number of bytes above 0"),
        (GOOD.replace("1e12", '"fast"'), "bandwidth = 'fast'; it must be a number of bytes/s"),
        (GOOD.replace("true", "1"), "gpu = 1; it must be true or false"),
        ("speed = 3\n" + GOOD, "says speed, which no device has"),
        ("watts = 0\n" + GOOD, "watts = 0; it must be a number of watts above 0"),
        ("paging = 3\n" + GOOD, "paging = 3; it must be a table"),
        (GOOD + PAGING.replace("watts = 0.3", ""), "does not say 'watts'"),
        (GOOD + PAGING.replace("in_latency", "latency"), "says latency, which no paging has"),
        (GOOD + PAGING + "capacity = 1.5\n", "capacity = 1.5; it must be a number of bytes above 0"),
    ],
)
def test_files_that_describe_no_device_are_told_why(tmp_path, text, message):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.toml") as error:
        load(tmp_path / "bad.toml")
    assert message in str(error.value)


def test_unknown_devices_are_told_the_known_ones():
    with pytest.raises(ValueError, match="'h100'; the known ones are a100, cortex-m4f, cpu, jetson-tx2, "):
        load("h100")
    with pytest.raises(ValueError, match=r"cannot read the device 'missing\.toml': No such file"):
        load("missing.toml")


def test_a_trace_knows_the_link_of_its_device():
    assert load("a100").about["swap_bandwidth"] == [12e9, 12e9]
    assert load("raspberry-pi").about["swap_bandwidth"] == [45.5e6, 24.5e6]  # its card
    assert "swap_bandwidth" not in SIMPLE.about


# --- the interconnect --------------------------------------------------------------------------------


def test_a_ring_is_as_fast_as_its_slowest_link():
    joined = Interconnect(100.0, network=10.0, per_node=4)
    assert joined.seconds(1000, [0, 1, 2, 3]) == 10.0
    assert joined.seconds(1000, [3, 4]) == 100.0
    assert Interconnect(100.0, network=1000.0, per_node=4).seconds(1000, [3, 4]) == 10.0
    assert Interconnect(100.0).seconds(1000, range(64)) == 10.0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("network = 1e9", "does not say 'bandwidth'"),
        ("bandwidth = 0", "has bandwidth = 0; it must be a number of bytes/s above 0"),
        ("bandwidth = 1e9\nper_node = 0.5", "has per_node = 0.5; it must be a number of devices above 0"),
        ("bandwidth = 1e9\nnvlink = true", "says nvlink, which no interconnect has"),
    ],
)
def test_a_wrong_interconnect_is_told(tmp_path, table, message):
    file = tmp_path / "mine.toml"
    known_good = "gpu = true\nalignment = 512\nlaunch = 1e-6\nbandwidth = 1e12\n[flops]\nfloat32 = 1e13\n"
    file.write_text(f"{known_good}[interconnect]\n{table}\n")
    with pytest.raises(ValueError, match=message):
        load(file)


def test_a_device_that_does_not_know_its_interconnect_cannot_price_a_collective():
    with (
        FakeRank(0, 4),
        pytest.raises(ValueError, match=r"'simple' does not say how fast ranks exchange bytes.*allreduce_"),
    ):
        dist.init_process_group("gloo")
        x = torch.ones(8)
        record(lambda: dist.all_reduce(x), warm_up=0, cost=lambda *call: SIMPLE.cost(*call[:5]))
