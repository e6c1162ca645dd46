"""A sample of random programs from fixed seeds, and the machine that makes, grows and shrinks
them."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from hunt.attempt import attempt
from hunt.child import Child
from hunt.compare import plain, random_settings
from hunt.machine import Machine, report
from hunt.mutate import MOST_STEPS, mutate
from hunt.plant import STEP
from hunt.program import Program, random_program, script
from hunt.shrink import shrink

SAMPLE = range(300)
"""Seeds of the programs that each test run tries."""


def case(seed):
    rng = random.Random(seed)
    return random_program(rng), [random_settings(rng) for _ in range(2)]


def test_sample_of_random_programs_gives_the_bits_of_plain_runs():
    child = Child()
    unstable = []  # two plain runs differ
    try:
        for seed in SAMPLE:
            program, settings = case(seed)
            answer = child.attempt((program.dump(), settings))
            text = script(program, settings[answer["at"] or 0], answer.get("raised", ()))
            assert answer["status"] in ("same", "unstable"), f"seed {seed}: {answer['what']}\n{text}"
            if answer["status"] == "unstable":
                unstable.append(seed)
    finally:
        child.stop()
    assert len(unstable) <= len(SAMPLE) // 50, f"the generator makes too many programs that say nothing: {unstable}"


def test_program_is_a_pure_function_of_its_seed():
    assert [case(seed) for seed in range(50)] == [case(seed) for seed in range(50)]
    assert case(1) != case(2)
    for seed in range(50):
        assert Program.load(case(seed)[0].dump()) == case(seed)[0]


def test_every_mutation_is_a_program():
    rng = random.Random(0)
    program = other = case(3)[0]
    for _ in range(300):
        program = mutate(program, other, rng)
        assert len(program.steps) <= MOST_STEPS
    compile(script(program, {"ratio": 0.5}), "script", "exec")
    assert attempt(program.dump(), [])["status"] == "same"


def test_shrinking_leaves_only_what_matters():
    program, settings = next((p, s[0]) for p, s in map(case, range(99)) if len(p.steps) == 60)
    names = {program.steps[7][0], program.steps[41][0]}

    def fails(smaller, fewer):
        return names <= {step[0] for step in smaller.steps} and "checks" in fewer

    smaller, fewer = shrink(program, settings, fails)
    assert {step[0] for step in smaller.steps} == names and len(smaller.steps) == 2
    assert all(step[1:] == (0, 0, 0, 0) for step in smaller.steps)
    assert fewer == {"ratio": 0.0, "checks": 0}


@pytest.mark.parametrize("planted", ["wrong", "raise", "crash"])
def test_machine_finds_a_planted_error_and_makes_it_small(planted, tmp_path):
    machine = Machine(tmp_path, seed=5, planted=planted)
    try:
        found = next(text for text in (machine.step() for _ in range(200)) if text)
    finally:
        machine.child.stop()
    lines = [line for line in found.splitlines() if line.startswith("    ")]
    assert len(lines) <= 3 and ".tanh()" in lines[-1], found
    assert machine.state.findings and list((tmp_path / "findings").glob("*.json"))


def test_machine_finds_a_hang():
    child = Child("hang")
    try:
        answer = child.attempt((Program(((STEP, 0, 0, 0, 0),)).dump(), []), seconds=2)
    finally:
        child.stop()
    assert answer["what"].startswith("hang")


def test_machine_goes_on_where_it_was(tmp_path):
    first = Machine(tmp_path, seed=1)
    try:
        for _ in range(8):
            first.step()
    finally:
        first.child.stop()
    first.save()
    second = Machine(tmp_path)
    assert second.state == first.state and second.corpus == first.corpus and first.corpus
    assert second.case(8) == first.case(8)
    assert "8 programs" in report(second.state, len(second.corpus))


@pytest.mark.filterwarnings("ignore")
def test_script_says_what_the_machine_says(tmp_path):
    program, settings = case(0)
    assert attempt(program.dump(), settings[:1])["status"] == "same"
    path = tmp_path / "script.py"
    path.write_text(script(program, settings[0], plain(program)["raised"]))
    here = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", path],
        env={"PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "in a budget: the same" in done.stdout, done
