"""Copies the docstrings of the installed warptile into the stubs of this folder's package: `python stub_docs.py`."""

import ast
import inspect
import pathlib
import textwrap

import warptile

STUBS = pathlib.Path(__file__).parent.parent / "python" / "warptile" / "_native.pyi"


def main():
    lines = STUBS.read_text().splitlines()
    for function in reversed(ast.parse("\n".join(lines)).body):
        if not isinstance(function, ast.FunctionDef) or function.name not in warptile.__all__:
            continue
        text = textwrap.indent(inspect.getdoc(getattr(warptile, function.name)), "    ").strip()
        signature = "\n".join(lines[function.lineno - 1 : function.body[0].lineno - 1]) or lines[function.lineno - 1]
        if ast.get_docstring(function) is None:
            signature = "\n".join(lines[function.lineno - 1 : function.end_lineno]).removesuffix(" ...")
        lines[function.lineno - 1 : function.end_lineno] = [*signature.splitlines(), f'    """{text}', '    """']
    STUBS.write_text("\n".join(lines) + "\n")
    (STUBS.parent / "generated" / "__init__.pyi").write_text(warptile._native.options_stub())


if __name__ == "__main__":
    main()
