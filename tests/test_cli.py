"""`coop run`: a script behaves as if Python ran it, and its report follows on stderr."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coop import _C, EventFile, cli

pytestmark = pytest.mark.slow  # each starts Python and PyTorch again

REPORT = re.compile(r"^ *coop *\n╭─.*\Z", re.DOTALL | re.MULTILINE)

# Shows all that a script can see of the way it was started.
SCRIPT_SEES = """
import atexit, json, multiprocessing, os, pickle, sys, threading
import helper
import torch

class Point:
    def __init__(self, x): self.x = x

class Squares(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.full((1000,), float(i * i))

def later():
    threading.Event().wait(0.2)
    print("thread", torch.ones(10).sum().item())

def double(x): return 2 * x

def main():
    print(json.dumps([__name__, __file__, __package__, __spec__, __cached__, __doc__, __builtins__.__name__, sys.argv, sys.path[0]]))
    print(sys.modules["__main__"].Point is Point, type(__loader__).__name__, __annotations__, sorted(globals()))
    print(pickle.loads(pickle.dumps(Point(3))).x, Point.__module__, helper.__file__)
    print(repr(sys.stdin.readline()), input(), sys.stdin.read())
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(double, range(3)), [p.x for p in pool.map(Point, range(2))])
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=workers)
        print(workers, [batch.sum().item() for batch in loader])
    if os.fork() == 0:
        sys.exit(0)  # runs exit functions, but is not the one that reports
    os.wait()
    atexit.register(lambda: print("exit function", torch.ones(3).sum().item()))
    threading.Thread(target=later).start()
    try:
        raise KeyError("handled")
    except KeyError:
        pass

if __name__ == "__main__":
    main()
"""

TRAIN = """
import sys, torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(1024, 256, generator=torch.Generator().manual_seed(0))).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print("trained")
if "--fail" in sys.argv:
    raise ValueError("after training")
"""


@pytest.fixture(autouse=True)
def interruptible():
    """A test run in the background of a shell inherits a SIGINT that is ignored, and so would the
    scripts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(*command, python=False, cwd=None, input=None):
    start = [sys.executable] if python else [sys.executable, "-m", "coop"]
    return subprocess.run([*start, *command], capture_output=True, text=True, cwd=cwd, input=input, timeout=120)


def written(folder: Path, source: str, name: str = "script.py") -> str:
    (folder / name).write_text(source)
    return name


def without_report(stderr: str) -> str:
    assert REPORT.search(stderr), f"no report in {stderr!r}"
    return REPORT.sub("", stderr)


def assert_as_python(
    folder: Path, script: str, *args: str, input: str | None = None, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    plain = run(script, *args, python=True, cwd=folder, input=input)
    under = run("run", "--budget", "64MiB", *options, script, *args, cwd=folder, input=input)
    assert under.stdout == plain.stdout
    assert without_report(under.stderr) == plain.stderr
    assert under.returncode == plain.returncode
    return under


@pytest.mark.parametrize("options", [(), ("--events", "run.events")], ids=["plain", "events"])
def test_the_script_sees_what_python_shows_it(tmp_path, options):
    folder = tmp_path / "its own"
    folder.mkdir()
    written(folder, SCRIPT_SEES)
    written(folder, "", "helper.py")
    arguments = ["--help", "--budget", "1", "-h", "--", "--policy=x", "--version", ""]
    stdin = "one\ntwo\nthree\nfour"
    done = assert_as_python(tmp_path, "its own/script.py", *arguments, input=stdin, options=options)
    assert done.returncode == 0
    if options:  # forked children have left it alone
        events = EventFile(tmp_path / "run.events")
        assert len(list(events)) > 10 and events.whole
    assert "thread 10.0" in done.stdout
    assert done.stdout.endswith("exit function 3.0\n")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('a word to stderr')", 1),
        ("def deep(): {}['key']\n\ntry:\n    deep()\nexcept KeyError:\n    raise ValueError('a value')", 1),
        pytest.param("def wrong(:\n", 1, marks=pytest.mark.slow),
        pytest.param("raise SystemExit", 0, marks=pytest.mark.slow),
        pytest.param("open('not there')", 1, marks=pytest.mark.slow),
        pytest.param(
            "import sys; sys.excepthook = lambda *a: print(a[0], a[2].tb_lineno); 1 / 0", 1, marks=pytest.mark.slow
        ),
        pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_it_ends_as_under_python(tmp_path, source, code):
    assert assert_as_python(tmp_path, written(tmp_path, source)).returncode == code


def test_ctrl_c_ends_it_as_under_python(tmp_path):
    source = (
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\nfinally:\n    print('cleaned up')\n"
    )
    script = written(tmp_path, source)
    command = [sys.executable, "-m", "coop", "run", "--budget", "1MiB", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert stdout == "cleaned up\n"
    traceback = without_report(stderr)
    assert traceback.startswith('Traceback (most recent call last):\n  File "')
    assert traceback.endswith("KeyboardInterrupt\n")
    assert "coop" not in traceback


def test_the_report_tells_what_happened(tmp_path):
    done = run("run", "--budget", "8MiB", "--policy", "lru", written(tmp_path, TRAIN), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    report = REPORT.search(done.stderr)[0]
    assert re.search(r"budget +│ 8.00 MiB ", report)
    assert re.search(r"peak +│ \d.\d\d MiB \(\d\d%\)", report)
    assert re.search(r"evictions +│ [1-9]", report)
    assert re.search(r"rematerialisations +│ [1-9]", report)
    for row in ("recomputation", "search"):
        assert re.search(rf"{row} +│ \d+\.\d\d s \(\d+\.\d% of the ops' time\)", report)
    assert re.search(r"fragmentation +│ \d+\.\d%", report)


@pytest.mark.parametrize(
    "where", [["--swap", "64MiB"], ["--swap-folder", "."], ["--swap", "64MiB", "--swap-folder", "."]]
)
def test_a_script_whose_parameters_do_not_fit_runs_with_a_tier(tmp_path, where):
    """Its parameters and gradients alone are 4 MiB."""
    script = written(tmp_path, TRAIN.replace("1024", "64"))
    if len(where) == 2:
        alone = run("run", "--budget", "2MiB", script, cwd=tmp_path)
        assert alone.returncode == 1 and "OutOfBudget" in alone.stderr
    done = run("run", "--budget", "2MiB", *where, script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    report = REPORT.search(done.stderr)[0]
    assert re.search(r"swapped out, in +│ [1-9]\d*\.\d\d MiB, [1-9]\d*\.\d\d MiB", report)
    assert re.search(r"hidden behind ops +│ \d+% of that", report)
    assert re.search(r"transfers +│ \d+\.\d\d s", report)
    assert sorted(path.name for path in tmp_path.iterdir()) == [script]


def test_the_report_follows_a_failure(tmp_path):
    script = written(tmp_path, TRAIN)
    done = run("run", "--budget", "8MiB", script, "--fail", cwd=tmp_path)
    assert done.returncode == 1
    file = tmp_path / script
    last = TRAIN.splitlines().index('    raise ValueError("after training")') + 1
    assert without_report(done.stderr) == (
        f'Traceback (most recent call last):\n  File "{file}", line {last}, in <module>\n'
        '    raise ValueError("after training")\nValueError: after training\n'
    )


@pytest.mark.slow
def test_out_of_budget_is_an_exception_of_the_script(tmp_path):
    done = run("run", "--budget", "1MiB", written(tmp_path, TRAIN), cwd=tmp_path)
    assert done.returncode == 1
    assert "coop.errors.OutOfBudget: " in without_report(done.stderr)
    assert "coop/" not in done.stderr


def test_measure_tells_peak_and_floor(tmp_path):
    done = run("run", "--measure", written(tmp_path, TRAIN), "--budget", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    peak, floor = (int(re.search(rf"{name} .*\((\d+) bytes\)", done.stderr)[1]) for name in ("peak", "floor"))
    assert 0 < floor < peak
    assert "budget" not in done.stderr


@pytest.mark.slow
def test_the_installed_command_is_the_same(tmp_path):
    command = Path(sys.executable).with_name("coop")
    if not command.exists():
        pytest.skip("coop is not installed here")
    script = written(tmp_path, "import sys\nprint(sys.argv, sys.path[0])\nraise KeyboardInterrupt")
    done = subprocess.run(
        [command, "run", "--measure", script, "-x"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.stdout == f"['script.py', '-x'] {tmp_path}\n"
    assert done.returncode == -signal.SIGINT
    assert "bin/coop" not in done.stderr


def test_a_refusal_is_one_sentence_without_a_traceback(tmp_path):
    done = run("run", "--budget", "1GiB", "not-there.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "coop: cannot read the script 'not-there.py': No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["run", "--budget", "1GiB", "not-there.py"],
            "cannot read the script 'not-there.py': No such file or directory",
        ),
        (["run", "--budget", "1GiB", "."], "cannot read the script '.': Is a directory"),
        (["run", "--budget", "4 potatoes", "s.py"], "'4 potatoes' is not a size"),
        (["run", "--budget", "0", "s.py"], "a budget must be more than 0 bytes, not '0'"),
        (["run", "--budget", "-4GiB", "s.py"], "a budget must be more than 0 bytes, not '-4GiB'"),
        (["run", "--budget", "900TiB", "s.py"], "a budget of 900.00 TiB is more than this machine has"),
        (
            ["run", "--budget", "1GiB", "--policy", "fifo", "s.py"],
            "unknown policy 'fifo'; the known ones are coop, coop-paper, dtr",
        ),
        (["run", "s.py"], "say either --budget SIZE or --measure"),
        (["run", "--measure", "--budget", "1GiB", "s.py"], "say either --budget SIZE or --measure"),
        (["run", "--measure", "--swap", "1GiB", "s.py"], "--swap is for a budget; --measure has none"),
        (["run", "--budget", "1GiB", "--swap", "lots", "s.py"], "'lots' is not a size"),
        (["run", "--budget", "1GiB", "--swap", "0", "s.py"], "a tier must be more than 0 bytes, not '0'"),
        (
            ["run", "--budget", "1GiB", "--swap-folder", "nowhere", "s.py"],
            "there can be no file to swap to in nowhere: No such",
        ),
        (["run", "--budget", "1GiB"], "Missing argument 'SCRIPT'"),
        (["run", "--bdget", "1GiB", "s.py"], "No such option '--bdget'"),
        (["walk", "s.py"], "No such command 'walk'"),
    ],
)
def test_a_wrong_command_is_refused_with_exit_code_2(tmp_path, monkeypatch, capsys, arguments, sentence):
    written(tmp_path, "", "s.py")
    monkeypatch.chdir(tmp_path)
    code, out, err = _in_process(monkeypatch, capsys, arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"coop: {sentence}")
    assert err.count("\n") == 1
    assert not _C.is_open()


def test_version_and_help(monkeypatch, capsys):
    assert _in_process(monkeypatch, capsys, ["--version"]) == (0, "coop 0.1.0\n", "")
    for arguments in (["--help"], ["run", "--help"]):
        code, out, err = _in_process(monkeypatch, capsys, arguments)
        assert (code, err) == (0, "")
        assert "run" in out
    code, out, err = _in_process(monkeypatch, capsys, [])
    assert (code, out) == (2, "")
    assert "Usage: coop" in err


def _in_process(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["coop", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return ended.value.code, out, err
