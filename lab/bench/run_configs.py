"""Score every real run file in this process and store the exit codes and verdicts.

python -m lab.bench.run_configs

Each run is `rksp score FILE --evidence config`, with no other argument and without a network. A run
that names its model on the Hub ends there unless the Hub's files are in the local cache. The page
of `recipe_files.py` counts the codes.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from lab.bench.recipe_files import CONFIGS, names

SCORED = CONFIGS / "scored.json"
_HUB = "not in the local cache"


def score(name: str) -> dict[str, object]:
    """Return the exit code of one run, and its verdict or the sentence that it ends with."""
    from rksp.cli import main

    out, errors = io.StringIO(), io.StringIO()
    arguments = ["score", str(CONFIGS / name), "--evidence", "config", "--format", "json"]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            main(arguments)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    if code in (0, 1):
        return {"code": code, "verdict": json.loads(out.getvalue())["verdict"]}
    sentence = errors.getvalue().strip().splitlines()[-1].removeprefix("rksp: ")
    if _HUB in sentence:
        return {"code": code, "why": "the Hub's files are not here"}
    return {"code": code, "why": sentence.replace(f"{CONFIGS}/", "")}


if __name__ == "__main__":
    found = {name: score(name) for name in sys.argv[1:] or names()}
    if sys.argv[1:]:
        print(json.dumps(found, indent=1))
    else:
        SCORED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
