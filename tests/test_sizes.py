"""Sizes as people write them, and what is refused."""

import pytest

import coop
from coop.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("512b", 512),
        ("600MiB", 600 * 2**20),
        ("4GB", 4 * 10**9),
        ("4gib", 4 * 2**30),
        ("1.5 KiB", 1536),
        ("  2 kb ", 2000),
        ("0.3KB", 300),
        ("3TiB", 3 * 2**40),
        ("2TB", 2 * 10**12),
        ("9007199254740993", 9007199254740993),
        (12345, 12345),
    ],
)
def test_units_are_powers_of_ten_or_of_two(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["4 potatoes", "", "GiB", "1.2.3MB", "1e9", "inf", "nan", "4 Gi B", "0x10", "4,5GB"])
def test_what_is_no_size_is_a_value_error_that_shows_how_to_write_one(text):
    with pytest.raises(ValueError, match=r"is not a size.*'600MiB'") as caught:
        coop.budget(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, -(2**40), "0", "0GiB", "-4GiB", "0.0001B"])
def test_nothing_or_less_is_a_value_error_that_names_it(size):
    with pytest.raises(ValueError, match="must be more than 0 bytes") as caught:
        coop.budget(size)
    assert repr(size) in str(caught.value)


@pytest.mark.parametrize("size", [None, 1.5, True, b"4GiB", ["4GiB"]])
def test_what_is_neither_an_int_nor_a_string_is_a_type_error(size):
    with pytest.raises(TypeError, match="a size is an int of bytes or a string such as '600MiB'"):
        coop.budget(size)


@pytest.mark.parametrize("size", ["900TiB", 10**400, "9" * 400 + "GiB"])
def test_more_than_the_machine_has_is_a_value_error_that_names_both(size):
    with pytest.raises(ValueError, match=r"a budget of [\d.E+]+ TiB is more than this machine has: [\d.]+ GiB"):
        coop.budget(size)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536 * 2**20, "1.50 GiB"), (2**50, "1024.00 TiB")],
)
def test_formatted_with_a_binary_unit(count, text):
    assert format_bytes(count) == text
