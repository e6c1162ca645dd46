"""`coop trace`: files that can be read, and one sentence for what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from coop import cli
from coop.commands.trace import _of_rank
from coop.trace import Source, read
from coop.trace.peak import peak_bytes

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    print("step", step + 1)
print("end")
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def coop(*args):
    return subprocess.run([sys.executable, "-m", "coop", "trace", *map(str, args)], capture_output=True, text=True)


def refused(monkeypatch, capsys, *args) -> str:
    """What it says, without the time that a process takes to start."""
    monkeypatch.setattr(sys, "argv", ["coop", "trace", *map(str, args)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    return capsys.readouterr().err


def test_a_scripts_step_is_recorded_and_the_script_stopped(script, tmp_path):
    result = coop(script, "-o", tmp_path / "step.trace", "--", 5)
    assert result.returncode == 0 and result.stdout.split("\n") == ["step 1", "step 2", ""]
    trace = read(tmp_path / "step.trace")
    assert list(dict.fromkeys(op.phase for op in trace.ops)) == ["forward", "backward", "optimizer"]
    gradients = [i for i in trace.instructions if isinstance(i, Source) and i.kind == "gradient"]
    assert len(gradients) == 2 and all(gradient.carries is not None for gradient in gradients)
    assert trace.about["step"] == 3 and trace.cost > 0 and "ops" in result.stderr


def test_a_script_can_go_on_and_its_exit_code_is_its_own(script, tmp_path):
    script.write_text(SCRIPT + "sys.exit(3)")
    result = coop(script, "--go-on", "--step", 1, "-o", tmp_path / "step.trace", "--", 2)
    assert result.returncode == 3 and result.stdout.endswith("step 2\nend\n")
    assert [op.phase for op in read(tmp_path / "step.trace").ops][-1] == "optimizer"


def test_a_script_with_too_few_steps_is_told_so(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "coop.trace.script.run_main", lambda path, source, args: exec(source.replace(b"sys.argv[1]", b"2"))
    )
    said = refused(monkeypatch, capsys, script, "-o", tmp_path / "step.trace", "--", 2)
    assert "ended after 2 steps of an optimizer, and step 3 was asked for. Tip: --step 2" in said
    assert not (tmp_path / "step.trace").exists()


def test_a_full_size_network_is_traced_by_its_shapes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["coop", "trace", "unet", "--batch", "2", "-o", str(tmp_path / "unet.trace")])
    cli.main()
    trace = read(tmp_path / "unet.trace")
    assert (trace.name, trace.device, trace.about["batch"]) == ("unet", "a100", 2)
    assert 3 * 2**30 < peak_bytes(trace, trace.about["alignment"]) < 4 * 2**30
    assert "GiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["vgg"], "no network and no script 'vgg'; the networks are resnet50"),
        (["missing.py"], "cannot read the script 'missing.py': No such file"),
        (["unet", "--device", "h100"], "no device 'h100'; the known ones are a100, cortex-m4f, cpu"),
        (["unet", "--batch", "0"], "0 is not in the range x>=1"),
        (["unet", "--step", "2"], "--step, --go-on and arguments are for scripts"),
        (["train.py", "--batch", "2"], "--batch and --device are for networks"),
        (["inception-v3", "--batch", "1"], "cannot trace inception-v3 with a batch of 1: Expected more than 1 value"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(monkeypatch, capsys, tmp_path, args, message):
    said = refused(monkeypatch, capsys, *args, "-o", tmp_path / "x.trace")
    assert message in said and said.count("\n") == 1 and said.startswith("coop: ")


def test_a_place_that_cannot_be_written_to_is_told_at_once(monkeypatch, capsys, tmp_path):
    said = refused(monkeypatch, capsys, "unet", "-o", tmp_path / "missing" / "x.trace")
    assert "there is no folder" in said


def test_each_rank_under_torchrun_writes_a_file_of_its_own(monkeypatch):
    assert _of_rank(Path("out/step.trace")) == Path("out/step.trace")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert _of_rank(Path("out/step.trace")) == Path("out/step.rank1.trace")
