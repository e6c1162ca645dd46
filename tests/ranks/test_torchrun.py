"""Ranks that torchrun starts: budgets, one report, files of their own, and failing together."""

import json
import re
import socket
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import coop
from command import refused
from coop import cli, commands
from coop.commands.closing import MEASURED, ClosingReport
from coop.distributed.budgets import budget_of
from coop.distributed.place import Place, place_in_environment, place_now
from coop.event_file import EventWriter
from coop.policies import options_for
from ranks.torchrun import Ended, by_hand, coop_run, started, torchrun

SCRIPTS = Path(__file__).with_name("scripts")
TRAIN = str(SCRIPTS / "train.py")
EXAMPLES = Path(__file__).parents[2] / "examples"

GiB = 1 << 30
FIRST, SECOND = (Place(rank, 2, rank, 2, "here") for rank in range(2))


# --- without processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("4GiB", 4 * GiB, 4 * GiB),
        ("8GiB/node", 4 * GiB, 4 * GiB),
        ("7/node", 3, 3),
        ("4GiB,2GiB", 4 * GiB, 2 * GiB),
        (" 1 GiB , 2 GiB ", GiB, 2 * GiB),
    ],
)
def test_each_rank_has_its_budget(text, first, second):
    assert (budget_of(text, FIRST, 8 * GiB), budget_of(text, SECOND, 8 * GiB)) == (first, second)


def test_a_list_goes_by_the_rank_in_the_world_and_its_sum_by_the_machine():
    third = Place(2, 4, 0, 2, "there")
    assert list(third.neighbours) == [2, 3]
    assert budget_of("8GiB,8GiB,1GiB,2GiB", third, 4 * GiB) == GiB
    with pytest.raises(
        ValueError, match=r"2 ranks with 1.00 GiB and 2.00 GiB need 3.00 GiB, and this machine has 2.00"
    ):
        budget_of("8GiB,8GiB,1GiB,2GiB", third, 2 * GiB)


def test_one_process_has_the_whole_of_a_machine():
    assert budget_of("8GiB/node", None) == 8 * GiB
    assert budget_of("8GiB", None) == 8 * GiB


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        ("4GiB", FIRST, r"^2 ranks with 4.00 GiB each need 8.00 GiB, and this machine has 7.00 GiB of memory. Tip: "),
        ("8GiB/node", FIRST, r"^2 ranks with 4.00 GiB each need 8.00 GiB, and this machine has 7.00 GiB of memory"),
        ("4GiB,2GiB,1GiB", FIRST, r"^'4GiB,2GiB,1GiB' has budgets for 3 ranks, and there are 2$"),
        ("4GiB,2GiB", None, r"^'4GiB,2GiB' has budgets for 2 ranks, and this is the only process. Tip: "),
        ("4GiB,", FIRST, "^'4GiB,' has an empty item"),
        (",", FIRST, "^',' has an empty item"),
        ("4GiB,2GiB/node", FIRST, "is both a list and /node"),
        ("1GiB,0", FIRST, "^a budget must be more than 0 bytes, not '0'$"),
        ("0/node", FIRST, "^a budget must be more than 0 bytes"),
        ("1/node", FIRST, "^'1/node' is less than one byte for each of the 2 ranks of this machine$"),
        ("/node", FIRST, "^'' is not a size"),
        ("4GiB,lots", FIRST, "^'lots' is not a size"),
        ("4GiB/node", Place(1, 2), "the launcher does not say how many they are. Tip: torchrun does"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused_in_one_sentence(text, place, sentence):
    with pytest.raises(ValueError, match=sentence):
        budget_of(text, place, 7 * GiB)


RANK = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_a_launcher_says_where_a_rank_is():
    place = place_in_environment(RANK)
    assert (place.rank, place.world, place.local_rank, place.local_world) == (3, 4, 1, 2)
    assert str(place) == f"rank 3 of 4 on {socket.gethostname()}"
    assert place.name_for("a/run.events") == "a/run.rank3.events" and place.name_for("run") == "run.rank3"
    for alone in ({}, {"RANK": "0"}, {"RANK": "0", "WORLD_SIZE": "1"}):
        assert place_in_environment(alone) is None
    assert list(place_in_environment({"RANK": "1", "WORLD_SIZE": "2"}).neighbours) == [1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"RANK": "one"}, "^RANK is 'one' in the environment, and must be a whole number from 0 to 3$"),
        ({"RANK": "4"}, "^RANK is '4'"),
        ({"RANK": "-1"}, "^RANK is '-1'"),
        ({"WORLD_SIZE": "many"}, "^WORLD_SIZE is 'many' in the environment, and must be a whole number of at least 1$"),
        ({"LOCAL_RANK": "2"}, "^LOCAL_RANK is '2' in the environment, and must be a whole number from 0 to 1$"),
        ({"LOCAL_WORLD_SIZE": "5"}, "^LOCAL_WORLD_SIZE is '5'"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused_in_one_sentence(monkeypatch, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        place_in_environment(RANK | change)
    for name, value in (RANK | change).items():
        monkeypatch.setenv(name, value)
    assert place_now() is None  # an error that is on its way is not replaced


def test_a_rank_follows_its_own_plan_if_there_is_one(tmp_path):
    plan = str(tmp_path / "step.plan")
    (tmp_path / "step.rank1.plan").write_text("")
    assert cli._plan_of(FIRST, plan) == plan
    assert cli._plan_of(SECOND, plan) == str(tmp_path / "step.rank1.plan")
    assert cli._plan_of(FIRST, None) is None


def test_what_all_ranks_would_say_is_said_once(monkeypatch, capsys, tmp_path):
    script = tmp_path / "s.py"
    script.write_text("")
    monkeypatch.setattr(commands, "WAIT_FOR_THE_SPEAKER", 0)
    for rank in range(2):
        for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        for budget, sentence in {
            "1MiB,": "has an empty item", "1MiB,1MiB,1MiB": "budgets for 3 ranks", "900TiB": "need 1800.00 TiB"
        }.items():  # fmt: skip
            if rank == 0:
                assert sentence in refused(capsys, "run", "--budget", budget, script)
            else:
                assert silent(capsys, "run", "--budget", budget, script) == 2
        # about one rank: each says its own
        arguments = ("run", "--budget", "1MiB", "--events", tmp_path / "nowhere" / "run.events", script)
        assert refused(capsys, *arguments).startswith(f"rank {rank} of 2 on {socket.gethostname()}: cannot write the ")
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert "RANK is 'first'" in refused(capsys, "run", "--budget", "1MiB", script)


def silent(capsys: pytest.CaptureFixture[str], *arguments: object) -> int:
    from command import coop as run

    ended = run(capsys, *arguments)
    assert (ended.out, ended.err) == ("", "")
    return ended.code


def test_the_report_has_the_smallest_and_the_largest_with_their_ranks(tmp_path):
    def stats(**figures: Any) -> dict[str, Any]:
        return {"stats": {"peak": 1 << 20, "floor": 1 << 19, **figures}, "unwritten": ""}

    class Gathered:
        place, attempt = Place(0, 4, 0, 4, "here"), 1

        def collect(self, seconds):
            return {1: stats(peak=3 << 20), 3: stats(op_seconds=2.0)}, {2: "rank 2 on there, process 7"}

    class Measured:
        def stats(self):
            return coop.Stats(**stats()["stats"])

        def finish_events(self):
            return ""

    with open(tmp_path / "err", "w+") as stream:
        report = ClosingReport(Measured(), MEASURED, stream, Gathered())
        report.tell(failed=False)
        report.tell(failed=False)  # once
        stream.seek(0)
        told = stream.read()
    assert told.count("coop, 4 ranks, attempt 2") == 1
    assert re.search(r"peak +│ 1.00 MiB \(1048576 bytes\), rank 0 +│ 3.00 MiB \(3145728 bytes\), rank 1 ", told)
    assert re.search(r"floor +│ 512.00 KiB \(524288 bytes\) +│ the same on all ranks ", told)
    assert re.search(r"time in ops +│ 0.00 s, rank 0 +│ 2.00 s, rank 3 ", told)
    assert re.search(r"no figures +│ rank 2 on there, process 7 +│ killed, or still running after 5 s ", told)


def test_two_processes_do_not_write_one_event_file(tmp_path):
    options = options_for("coop", 1 << 20, 0, {})
    busy = pytest.raises(OSError, match=r"another process writes to it. Tip: one file for each rank")
    with EventWriter(tmp_path / "run.events", options, "coop"), busy:
        EventWriter(tmp_path / "run.events", options, "coop")
    EventWriter(tmp_path / "run.events", options, "coop").close()
    assert coop.EventFile(tmp_path / "run.events").budget == 1 << 20


def test_agreeing_alone_does_nothing():
    with coop.agree():
        pass
    with pytest.raises(KeyError), coop.agree():
        raise KeyError


# --- under torchrun ---------------------------------------------------------------------------------------------------


LIMIT = 10
"""Seconds from the first failure until all have ended."""


def root_cause(ended: Ended) -> str:
    """The last part of torchrun's summary. All ranks have ended in time after that."""
    assert ended.code == 1 and "Root Cause" in ended.err, ended
    summary = ended.err[ended.err.index("Root Cause") :]
    failed = datetime.fromisoformat(re.search(r"time +: (\S+)", summary)[1].replace("_", " "))
    assert (ended.at - failed).total_seconds() < LIMIT, ended
    return summary


def digests(ended: Ended) -> set[str]:
    return set(re.findall(r"rank \d ([0-9a-f]{64})", ended.out))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> set[str]:
    """What the ranks compute without coop."""
    ended = torchrun(tmp_path_factory.mktemp("plain"), TRAIN)
    assert ended.code == 0 and len(digests(ended)) == 1, ended
    return digests(ended)


@pytest.mark.slow
def test_ranks_have_their_own_budgets_and_files_and_one_report(tmp_path, plain):
    (tmp_path / "scratch").mkdir()
    options = ["--events", "run.events", "--swap-folder", "scratch"]
    ended = coop_run(tmp_path, "--budget", "12MiB,14MiB", *options, TRAIN)
    assert ended.code == 0 and digests(ended) == plain, ended
    for rank, budget in enumerate((12 << 20, 14 << 20)):
        events = coop.EventFile(tmp_path / f"run.rank{rank}.events")
        assert events.budget == budget and len(list(events)) > 10 and events.whole
        assert re.search(rf"rank {rank} [0-9a-f]+ coop-pages-rank{rank}-\w{{6}}$", ended.out, re.MULTILINE)
    assert not (tmp_path / "run.events").exists()
    assert ended.err.count("coop, 2 ranks") == 1 and ended.err.count("╭") == 1, ended
    assert re.search(r"budget +│ 12.00 MiB, rank 0 +│ 14.00 MiB, rank 1 ", ended.err)
    assert re.search(r"events +│ run.rank0.events +│ to run.rank1.events ", ended.err)


@pytest.mark.slow
def test_the_installed_command_runs_under_torchrun(tmp_path, plain):
    """torchrun starts a script, and coop's own is one; the budget is divided by the ranks."""
    command = Path(sys.executable).with_name("coop")
    if not command.exists():
        pytest.skip("coop is not installed here")
    ended = torchrun(tmp_path, str(command), "run", "--budget", "28MiB/node", TRAIN)
    assert ended.code == 0 and digests(ended) == plain, ended
    assert re.search(r"budget +│ 14.00 MiB +│ the same on all ranks ", ended.err)


@pytest.mark.slow
def test_what_is_wrong_is_said_once_under_torchrun(tmp_path):
    ended = coop_run(tmp_path, "--budget", "4MiB,2MiB,1MiB", TRAIN)
    assert ended.code == 1 and "exitcode  : 2" in ended.err, ended
    assert ended.err.count("coop: '4MiB,2MiB,1MiB' has budgets for 3 ranks, and there are 2\n") == 1, ended


@pytest.mark.slow
def test_a_rank_that_runs_out_ends_all_with_its_sentence_in_the_summary(tmp_path):
    ended = coop_run(tmp_path, "--budget", "14MiB,6MiB", TRAIN)
    summary = root_cause(ended)
    assert re.search(rf"coop.errors.OutOfBudget: rank 1 of 2 on {socket.gethostname()}: aten::\S+ needs ", summary)
    assert "coop/run.py" not in summary
    assert re.search(r"budget +│ 6.00 MiB, rank 1 +│ 14.00 MiB, rank 0 ", ended.err), ended


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--own"], ["-m", "coop", "run", "--budget", "4MiB"]], ids=["own", "run"])
def test_a_failed_rank_ends_although_its_process_group_waits(tmp_path, arguments):
    """A program that opens its budget itself, and one that does not."""
    script = [str(SCRIPTS / "pending.py")]
    ended = torchrun(tmp_path, *(script + arguments if arguments == ["--own"] else arguments + script))
    summary = root_cause(ended)
    assert f"coop.errors.OutOfBudget: rank 1 of 2 on {socket.gethostname()}: aten::ones needs 4.00 GiB" in summary


@pytest.mark.slow
def test_a_killed_rank_is_named_in_the_report(tmp_path):
    ended = coop_run(tmp_path, "--budget", "14MiB", TRAIN, "--kill")
    root_cause(ended)  # of this rank, or of the other one, which fails within the same second
    assert ended.err.count("coop, 2 ranks") == 1, ended
    killed = re.search(
        r"no figures +│ rank 1 on (\S+), process (\d+) +│ killed, or still running after 2 s ", ended.err
    )
    assert killed and killed[1] == socket.gethostname(), ended
    assert f"Signal 9 (SIGKILL) received by PID {killed[2]}" in ended.err, ended


@pytest.mark.slow
def test_a_rank_that_goes_on_alone_is_refused_its_next_collective(tmp_path):
    ended = torchrun(tmp_path, str(SCRIPTS / "going_on.py"))
    assert ended.out.count("caught") == 1 and ended.out.count("step 1: 2.0") == 2
    assert "step 2" not in ended.out and "step 3" not in ended.out, "a gradient of two steps"
    summary = root_cause(ended)
    assert (
        f"OutOfStep: rank 1 of 2 on {socket.gethostname()} ran out of budget in aten::ones and went on to "
        "c10d::allreduce_, but rank 0 did not run out there" in summary
    )


@pytest.mark.slow
def test_ranks_agree(tmp_path):
    ended = torchrun(tmp_path, str(SCRIPTS / "agreeing.py"), "out", "--collectives")
    files = [tmp_path / f"out.{rank}.json" for rank in range(2)]
    assert all(file.exists() for file in files), ended
    found = [json.loads(file.read_text()) for file in files]
    for rank, here in enumerate(found):
        assert all(right is True for name, right in here.items() if name.startswith("sum")), here
        assert here["plain, fine"] == here["handled_inside"] == here["decorated 0"] == here["decorated 2"] == "fine"
        assert here["alike, without agreeing"]["rank"] == rank
        for name, failed in {"one_rank_runs_out": 1, "decorated 1": 0}.items():
            error = here[name]
            assert error["kind"] == "OutOfBudget" and error["rank"] == failed and error["op"] == "aten::ones"
            assert error["needed"] == 400_000_000 <= error["enough"] <= error["program"], error
            assert error["budget"] == 64 << 20
            assert error["text"].startswith("another rank ran out of budget: rank ") == (rank != failed)
            assert f"rank {failed} of 2 on {socket.gethostname()}: aten::ones needs 381.47 MiB" in error["text"]
    zero, one = found
    assert zero["one_rank_runs_out"]["text"].endswith(one["one_rank_runs_out"]["text"])
    assert (zero["plain"]["kind"], one["plain"]["kind"]) == ("OutOfMemoryError", "OutOfMemoryError")
    assert one["another_error_on_one_rank"]["kind"] == "ValueError"
    told = zero["another_error_on_one_rank"]
    assert told["kind"] == "RuntimeError" and told["text"].endswith("ValueError: no such word"), told
    told = zero["both_in_different_ways"]
    assert told["kind"] == "RuntimeError" and "KeyError" in told["text"] and "OutOfBudget" in told["from"], told
    # A block in which ranks wait for each other cannot be left by one of them.
    seconds, note = one["gave up"]
    assert seconds < 2 and "the block has 2 collectives, and this rank failed after 1 of them" in note
    assert (
        one["then a collective"]["kind"] == "OutOfStep" and "Tip: let the program end" in one["then agreeing"]["text"]
    )
    assert zero["gave up"] == "waited"


@pytest.mark.slow
def test_the_example_finds_one_batch_size_for_all_ranks(tmp_path):
    ended = torchrun(tmp_path, str(EXAMPLES / "batch_size.py"))
    assert ended.code == 0, ended
    sizes = dict(re.findall(r"rank (\d) trains with (\d+) rows", ended.out))
    assert set(sizes) == {"0", "1"} and len(set(sizes.values())) == 1 and int(sizes["0"]) < 1024
    assert re.search(r"1024 rows: rank 1 needs a budget of about [\d,]+ bytes", ended.out)


@pytest.mark.slow
def test_a_restarted_program_computes_the_same_bits(tmp_path, plain):
    ended = coop_run(tmp_path, "--budget", "14MiB", TRAIN, "--fail-once", options=["--max-restarts", "1"])
    assert ended.code == 0 and digests(ended) == plain, ended
    assert ended.err.count("coop, 2 ranks, attempt 2") == 1 and ended.err.count("coop, 2 ranks") == 2, ended


@pytest.mark.slow
def test_ranks_without_a_launcher_report_through_their_group_or_each_for_itself(tmp_path, plain):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first, second = by_hand(tmp_path, "-m", "coop", "run", "--budget", "14MiB", TRAIN, port=port)
    assert (first.code, second.code) == (0, 0), f"{first}\n{second}"
    assert digests(first) == digests(second) == plain
    assert first.err.count("coop, 2 ranks") == 1 and "no figures" not in first.err and "coop" not in second.err, first
    (tmp_path / "alone.py").write_text("import torch; torch.ones(1000)")
    for rank, ended in enumerate(by_hand(tmp_path, "-m", "coop", "run", "--measure", "alone.py", port=port)):
        assert ended.code == 0 and f"coop, rank {rank} of 2 on {socket.gethostname()}" in ended.err, ended


@pytest.mark.slow
def test_a_rank_that_is_ended_while_it_waits_leaves_its_figures(tmp_path):
    """Rank 0 waits for rank 1, in C++. SIGTERM to torchrun goes to both."""
    with started(tmp_path, "-m", "coop", "run", "--budget", "14MiB", TRAIN, "--wait") as process:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.5)
        process.terminate()
        begin = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert time.monotonic() - begin < LIMIT, err
    assert err.count("coop, 2 ranks") == 1 and "no figures" not in err, err
    assert re.search(r"budget +│ 14.00 MiB +│ the same on all ranks ", err), err
