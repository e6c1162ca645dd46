"""The sweep: PyTorch's own test inputs, run plainly and inside budgets, bit for bit.

    cases       what is run: one operator, module or optimizer, in one dtype and one form
    catalog     all of them
    operators   the programs of an operator's case, one for each of PyTorch's samples
    crowded     programs of large calls, for which many elements meet in one place
    modules     the same for a module
    optimizers  the same for an optimizer
    copies      a sample's tensors, copied by each program
    verdicts    runs a case plainly, twice, and in six kinds of scopes, and compares
    known       the cases that cannot be compared, with the reason
    workers     runs cases in child processes, so that a crash is a finding
    state       the file of what is done
    report      what came out, in tables
    leaves      looks at each operator below autograd: what is not deterministic, what it writes secretly

`python -m opinfo` runs it; `make hunt-opinfo` runs all of it.
"""
