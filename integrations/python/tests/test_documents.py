"""The README's programs run, the stubs are of the functions that there are, and public functions have types."""

import ast
import contextlib
import importlib.util
import inspect
import io
import json
import pathlib
import pickle
import re
import typing
import unittest

import numpy as np
import stub_docs
import warptile
import warptile.flash_attn

HERE = pathlib.Path(__file__).parent


class Documents(unittest.TestCase):
    def test_programs_of_the_readme(self):
        text = (HERE.parent / "README.md").read_text()
        programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        here = [program for program in programs if "torch" not in program]
        self.assertTrue(here)
        for program in here:
            with self.subTest(program), contextlib.redirect_stdout(io.StringIO()):
                exec(compile(program, "README.md", "exec"), {})

    def test_stubs(self):
        package = pathlib.Path(warptile.__file__).parent
        stubs = ast.parse((package / "_native.pyi").read_text())
        seen = set()
        generated = (package / "generated" / "__init__.pyi").read_text()
        self.assertEqual(generated, stub_docs.generated(), "run tests/stub_docs.py, which generates it")
        *attention, listed = ast.parse(generated).body
        fields = listed.body
        options = {field.target.id for field in fields if isinstance(field, ast.AnnAssign)}
        self.assertEqual(len(fields), 2 * len(options), "each option has a docstring")
        for function in [*attention, *stubs.body]:
            if not isinstance(function, ast.FunctionDef):
                continue
            seen.add(function.name)
            text = inspect.getdoc(getattr(warptile._native, function.name))
            if function.name in warptile.__all__:
                self.assertEqual(ast.get_docstring(function), text, "run tests/stub_docs.py, which copies docstrings into the stubs")
            real = inspect.signature(getattr(warptile._native, function.name)).parameters
            arguments = function.args
            stub = [a.arg for a in arguments.args + arguments.kwonlyargs]
            if function.name == "attention":
                self.assertEqual({*stub, *options}, set(real))
                continue
            if arguments.kwarg:
                stub.append(arguments.kwarg.arg)
            self.assertEqual(stub, list(real), function.name)
        attention = {"attention", "attention_after_write", "attention_backward", "attention_of_torch", "attention_without_gradient"}
        self.assertEqual(seen, {*attention, "explain", "gradient_names", "has_kernels", "merge", "options_stub", "write_cache"})

    def test_types_of_python_modules(self):
        package = pathlib.Path(warptile.__file__).parent
        self.assertTrue((package / "py.typed").exists())
        for module in ("flash_attn", "torch"):
            tree = ast.parse((package / f"{module}.py").read_text())
            functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
            typed = {node.name for node in functions if node.returns is not None}
            (public,) = (node for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
            self.assertLessEqual(set(ast.literal_eval(public.value)), typed)
            for function in functions:
                arguments = function.args
                every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
                untyped = [argument.arg for argument in every if argument.annotation is None]
                self.assertEqual(untyped if function.name in typed else [], [], function.name)
        for name in warptile.flash_attn.__all__:
            self.assertIn("return", typing.get_type_hints(getattr(warptile.flash_attn, name)), name)

    def test_list_of_the_peers_tests(self):
        peers = HERE / "peers"
        spec = importlib.util.spec_from_file_location("peers_run", peers / "run.py")
        run = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(run)
        text, results = (peers / "README.md").read_text(), (peers / "results.json").read_text()
        report = json.loads(results)
        self.assertEqual(run.with_list(text, report), text)
        self.assertEqual(run.compact(report), results)
        for name, row in report["tests"].items():
            self.assertEqual(row["ran"], sum(row[result] for result in run.RESULTS), name)
            for counts in row["parameters"].values():
                self.assertEqual(row["ran"], sum(map(sum, counts.values())), name)

    def test_functions_take_what_their_signatures_say(self):
        q = np.zeros((1, 1, 1, 8), np.float32)
        for name in inspect.signature(warptile.attention).parameters:
            if name not in ("q", "k", "v"):
                warptile.attention(q, q, q, **{name: None})
                warptile.explain(q, q, q, **{name: None})
        for function, name in ((warptile.attention, "attention"), (warptile.explain, "explain")):
            with self.assertRaisesRegex(TypeError, rf"^{name}\(\) got an unexpected keyword argument 'casual'$"):
                function(q, q, q, casual=True)
            with self.assertRaisesRegex(TypeError, "argument 'scale'.* str"):
                function(q, q, q, scale="big")
            with self.assertRaisesRegex(TypeError, "q"):
                function(q, q, q, q=q)
            with self.assertRaisesRegex(TypeError, "missing 1 required positional argument: 'v'"):
                function(q, q)
        self.assertIs(pickle.loads(pickle.dumps(warptile.attention)), warptile.attention)
        self.assertEqual(warptile.attention.__module__, warptile.explain.__module__)

    def test_docstrings(self):
        for name in ("attention", "explain", "merge"):
            function = getattr(warptile, name)
            for parameter in inspect.signature(function).parameters:
                self.assertRegex(function.__doc__, rf"(?m)^ +{parameter}: ", name)
        for name in warptile.__all__:
            self.assertTrue(getattr(warptile, name).__doc__, name)
        for name in warptile.flash_attn.__all__:
            function = getattr(warptile.flash_attn, name)
            for parameter in inspect.signature(function).parameters:
                self.assertRegex(function.__doc__, rf"(?m)^ +([a-z_]+, )*{parameter}(, [a-z_]+)*: ", name)
            self.assertIn("Returns:", function.__doc__)


if __name__ == "__main__":
    unittest.main()
