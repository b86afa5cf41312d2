"""The README's programs run, and the stubs are of the functions that there are."""

import ast
import contextlib
import importlib.util
import inspect
import io
import json
import pathlib
import re
import unittest

import warptile

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
        stubs = ast.parse((pathlib.Path(warptile.__file__).parent / "_native.pyi").read_text())
        seen = set()
        for function in stubs.body:
            if not isinstance(function, ast.FunctionDef):
                continue
            seen.add(function.name)
            real = inspect.signature(getattr(warptile._native, function.name)).parameters
            arguments = function.args
            stub = [a.arg for a in arguments.args + arguments.kwonlyargs]
            if arguments.kwarg:
                stub.append(arguments.kwarg.arg)
            self.assertEqual(stub, list(real), function.name)
        self.assertEqual(seen, {"attention", "attention_without_gradient", "explain", "merge", "write_cache"})

    def test_stubs_of_python_modules(self):
        def signatures(path):
            functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
            for function in functions:
                arguments = function.args
                names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                defaults = [ast.unparse(default) for default in (*arguments.defaults, *filter(None, arguments.kw_defaults))]
                yield function.name, (names, [default.replace("NAME", "'warptile'") for default in defaults])

        package = pathlib.Path(warptile.__file__).parent
        for module in ("flash_attn", "torch"):
            real = dict(signatures(package / f"{module}.py"))
            stubs = dict(signatures(package / f"{module}.pyi"))
            self.assertTrue(stubs)
            for name, stub in stubs.items():
                self.assertEqual(stub, real[name], name)

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

    def test_docstrings(self):
        for name in ("attention", "explain", "merge"):
            function = getattr(warptile, name)
            for parameter in inspect.signature(function).parameters:
                self.assertRegex(function.__doc__, rf"(?m)^ +{parameter}: ", name)
        for name in warptile.__all__:
            self.assertTrue(getattr(warptile, name).__doc__, name)


if __name__ == "__main__":
    unittest.main()
