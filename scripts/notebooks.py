"""Run the notebooks of docs/ and store their outputs: python scripts/notebooks.py [FILE ...]

They run in this process, in an empty folder, as Jupyter would run them: what a cell prints, and the
value of its last expression as HTML, picture or text. No Jupyter is needed.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
FORMS = (("_repr_html_", "text/html"), ("_repr_png_", "image/png"))


def run(notebook: dict[str, Any], names: dict[str, Any] | None = None) -> Iterator[list[Any]]:
    """The outputs of each cell with code, in their order; `names` are the variables."""
    names = {"__name__": "__main__"} if names is None else names
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        *statements, last = ast.parse("".join(cell["source"])).body
        value, printed = None, io.StringIO()
        with contextlib.redirect_stdout(printed):
            if not isinstance(last, ast.Expr):
                statements, last = [*statements, last], None
            _execute(ast.Module(statements, []), "exec", names)
            if last is not None:
                value = _execute(ast.Expression(last.value), "eval", names)
        outputs: list[Any] = []
        if printed.getvalue():
            text = printed.getvalue().splitlines(keepends=True)
            outputs.append({"name": "stdout", "output_type": "stream", "text": text})
        if value is not None:
            outputs.append(
                {
                    "output_type": "execute_result",
                    "execution_count": count,
                    "metadata": {},
                    "data": shown(value),
                }
            )
        yield outputs


def _execute(tree: Any, mode: str, names: dict[str, Any]) -> Any:
    code = compile(ast.fix_missing_locations(tree), "notebook", mode)
    return eval(code, names)


def shown(value: Any) -> dict[str, Any]:
    """A value in the forms that a notebook shows."""
    found: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    for method, kind in FORMS:
        if hasattr(value, method):
            made = getattr(value, method)()
            found[kind] = (
                base64.b64encode(made).decode()
                if isinstance(made, bytes)
                else made.splitlines(keepends=True)
            )
    return found


def main(files: list[Path]) -> None:
    """Run notebooks and write them with their outputs."""
    sys.path.insert(0, str(DOCS.parent))
    for file in files:
        notebook = json.loads(file.read_text(encoding="utf-8"))
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            warnings.simplefilter("ignore")
            for number, (cell, outputs) in enumerate(zip(code, run(notebook), strict=True), 1):
                cell["outputs"], cell["execution_count"] = outputs, number
        file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(file)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main([Path(name).resolve() for name in sys.argv[1:]] or NOTEBOOKS)
