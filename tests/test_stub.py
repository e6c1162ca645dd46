"""The stub of the extension names what the extension has."""

import ast
from pathlib import Path

import coop
from coop import _C


def test_the_stub_and_the_extension_have_the_same_names():
    stub = ast.parse((Path(coop.__file__).parent / "_C.pyi").read_text())
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: _attributes(node) for node in stub.body if isinstance(node, ast.ClassDef)}
    assert functions | set(classes) == {name for name in vars(_C) if not name.startswith("__")}
    assert classes["Options"] == {name for name in vars(_C.Options) if not name.startswith("_")}
    for name in ("Placement", "CostModel"):
        assert classes[name] == set(getattr(_C, name).__members__)


def _attributes(node: ast.ClassDef) -> set[str]:
    targets = [statement.target for statement in node.body if isinstance(statement, ast.AnnAssign)]
    targets += [target for statement in node.body if isinstance(statement, ast.Assign) for target in statement.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}
