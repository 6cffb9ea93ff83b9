"""The tools of `rksp mcp`, called by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

import rksp
from rksp.cli.mcp import _refusing, explain, grid, score
from rksp.ground.errors import InputError

RUN = """\
model_name_or_path: gpt2
learning_rate: 0.3
lr_scheduler_type: cosine
per_device_train_batch_size: 32
max_steps: 1000
warmup_steps: 100
"""


def test_a_client_scores_fixes_and_scores_again(tmp_path):
    pytest.importorskip("mcp")
    from mcp import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    folder = tmp_path / "served"
    folder.mkdir()
    file, outside = folder / "run.yaml", tmp_path / "other.yaml"
    for path in (file, outside):
        path.write_text(RUN)

    async def talk() -> tuple[list[str], list[str]]:
        arguments = ["-m", "rksp", "mcp", "--root", str(folder)]
        server = StdioServerParameters(command=sys.executable, args=arguments)
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            told = await session.initialize()
            assert told.server_info.version == rksp.__version__
            tools = [tool.name for tool in (await session.list_tools()).tools]
            calls = [
                ("score", {"target": str(file)}),
                ("fix", {"file": str(file), "write": True}),
                ("score", {"target": str(file)}),
                ("score", {"target": "os:system"}),
                ("score", {"target": str(outside)}),
                ("score", {"target": "gpt2", "learning_rate": 1e-3}),
            ]
            said = [await session.call_tool(name, given) for name, given in calls]
            return tools, [one.content[0].text for one in said]

    tools, (before, fixed, after, refused, away, unknown) = asyncio.run(talk())
    assert tools == ["score", "fix", "explain", "grid"]
    assert json.loads(before)["launch"] == "no" and json.loads(after)["launch"] == "yes"
    assert "-learning_rate: 0.3" in fixed and "0.3" not in file.read_text()
    assert "factory" in refused and "outside" in away
    assert "learning_rate" in unknown


def test_no_argument_becomes_an_option_that_runs_code_or_writes(tmp_path):
    for target in ("os:system", "--trust-remote-code"):
        with pytest.raises(InputError):
            score(target)
    with pytest.raises(InputError, match="output"):
        score("gpt2", {"output": str(tmp_path / "x.json")})
    with pytest.raises(InputError, match="NAME=VALUES"):
        grid("gpt2", [f"-o{tmp_path / 'x.db'}"])
    with pytest.raises(InputError, match="does not know"):
        explain("--trust-remote-code")
    assert list(tmp_path.iterdir()) == []


def test_a_grid_is_ranked():
    assert "0.001" in grid("gpt2", ["lr=1e-3,3e-1"]) or "1e-3" in grid("gpt2", ["lr=1e-3,3e-1"])


def test_a_refusal_is_its_sentence():
    assert "nosuch.yaml" in json.loads(_refusing(score, Path())("nosuch.yaml"))["error"]
