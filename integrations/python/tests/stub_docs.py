"""Copies the docstrings of the installed warptile into the stubs of this folder's package: `python stub_docs.py`."""

import ast
import inspect
import pathlib
import textwrap

import warptile

STUBS = pathlib.Path(__file__).parent.parent / "python" / "warptile" / "_native.pyi"


ATTENTION = '''@overload
def attention(q: ArrayT, k: Array, v: Array, *, return_lse: Literal[{value}]{default}, **options: Unpack[Options]) -> {result}:
    """{text}
    """
'''

BACKWARD = '''def attention_backward(
    d_out: Array, q: ArrayT, k: Array, v: Array, out: Array, lse: Array, **options: Any
) -> tuple[{results}]:
    """{text}
    """
'''


def documentation(name):
    return textwrap.indent(inspect.getdoc(getattr(warptile, name)), "    ").strip()


def generated():
    """The types of the options, and `attention` and its gradients with their documentation."""
    head, _, options = warptile._native.options_stub().partition("class ")
    text = documentation("attention")
    results = {"False": (" = False", "ArrayT"), "True": ("", "tuple[ArrayT, ArrayT]")}
    stubs = [ATTENTION.format(value=value, default=default, result=of, text=text) for value, (default, of) in results.items()]
    gradients = ", ".join("ArrayT | None" for _ in warptile._native.gradient_names())
    stubs.append(BACKWARD.format(results=gradients, text=documentation("attention_backward")))
    return f"{head}{''.join(stubs)}\nclass {options}"


def main():
    lines = STUBS.read_text().splitlines()
    for function in reversed(ast.parse("\n".join(lines)).body):
        if not isinstance(function, ast.FunctionDef) or function.name not in warptile.__all__:
            continue
        text = documentation(function.name)
        signature = "\n".join(lines[function.lineno - 1 : function.body[0].lineno - 1]) or lines[function.lineno - 1]
        if ast.get_docstring(function) is None:
            signature = "\n".join(lines[function.lineno - 1 : function.end_lineno]).removesuffix(" ...")
        lines[function.lineno - 1 : function.end_lineno] = [*signature.splitlines(), f'    """{text}', '    """']
    STUBS.write_text("\n".join(lines) + "\n")
    (STUBS.parent / "generated" / "__init__.pyi").write_text(generated())


if __name__ == "__main__":
    main()
