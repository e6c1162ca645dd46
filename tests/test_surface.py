"""The parts that are generated from the engine's lists are up to date, and match the extension."""

import sys
from pathlib import Path

import pytest

import coop
from coop import _C
from coop.policies import SWITCHES
from coop.surface import EVENT_KINDS, OPTIONS, StatsFields

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import surface


def test_the_generated_parts_are_up_to_date():
    stale = [str(path.relative_to(surface.HOME)) for path in surface.out_of_date()]
    assert not stale, f"{stale} are out of date. Tip: python tools/surface.py, or make format"


def test_the_list_of_options_is_the_extensions():
    options = _C.Options()
    assert set(OPTIONS) == {name for name in dir(options) if not name.startswith("_")}
    for field in surface.options():
        default = getattr(options, field.name)
        written = field.default.strip('"')
        assert written in (default, str(default)) or default == float(written), field.name
        assert type(default).__name__ == field.type
    assert set(OPTIONS) > SWITCHES and "budget" not in SWITCHES


def test_the_list_of_figures_is_the_extensions():
    with coop.budget("1MiB"):
        told = _C.stats()
    assert set(told) == {field.name for field in surface.figures()}
    for field in surface.figures():
        assert type(told[field.name]).__name__ == field.type, field.name
        assert field.meaning.endswith(".") and field.meaning[0].isupper()
    assert coop.Stats(**told) == coop.Stats(**told) != coop.Stats()
    assert issubclass(coop.Stats, StatsFields)


def test_each_kind_of_event_has_a_meaning():
    assert {"place", "bind", "free", "out", "in", "plan_adopted", "plan_lost"} < set(EVENT_KINDS)
    assert all(EVENT_KINDS.values())


LIST = r"""
#define COOP_THINGS(X)                  \
  X(one, int, 1, "a (b), \"c\"")        \
  X(two, Bytes, 1u << 4, "long: it "    \
    "goes on")

#define OTHER(X) X(three)
"""


def test_a_list_is_read_as_c_plus_plus_writes_it():
    one, two = surface.entries(LIST, "COOP_THINGS")
    assert one[:3] == ["one", "int", "1"] and surface.text(one[3]) == 'a (b), "c"'
    assert two[:3] == ["two", "Bytes", "1u << 4"] and surface.text(two[3]) == "long: it goes on"
    assert surface.value(two[2], "int") == "16"
    assert surface.value("PolicyKind::coop", "PolicyKind") == "PolicyKind.coop"
    assert (surface.value("4e9", "float"), surface.value("true", "bool")) == ("4000000000.0", "True")
    with pytest.raises(surface.SurfaceError, match="no list COOP_OTHERS"):
        surface.entries(LIST, "COOP_OTHERS")
    with pytest.raises(surface.SurfaceError, match="no default of type int"):
        surface.value("kSize", "int")


def test_each_policy_of_the_engine_can_be_chosen_by_name():
    assert {settings["policy"] for settings in coop.POLICIES.values()} == set(_C.policy_names())
