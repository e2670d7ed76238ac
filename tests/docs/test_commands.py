"""Every command and every Python example in the docs works as it stands.

Commands that start a server are checked flag by flag; one server with the real model is started for all others, and
they are run against it as they are, but for its port.
"""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeproot.runtime.cli import build_parser, with_config

from .doc_blocks import ROOT, Block, all_blocks, commands_of

PORT, KEY = "8000", "YOUR_KEY"
SHELL = ("sh", "bash")
DEFAULT_MODEL = "~/.cache/deeproot/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def starts_server(command: str) -> bool:
    return command.split()[0] == "scripts/serve" or command.startswith("deeproot serve")


def is_setup(command: str) -> bool:
    """What this suite is itself run by, or what needs a network."""
    return command.split()[0] in ("scripts/test", "git", "pip", "cd") or command.startswith("python -m venv")


@pytest.fixture(scope="module")
def port(smollm2_path: Path) -> Iterator[str]:
    """Port of a server with the real model."""
    command = [
        str(Path(sys.executable).with_name("deeproot")),
        "serve",
        "--port",
        "0",
        "--model",
        str(smollm2_path),
    ]
    size = ["--kv-cache-memory-bytes", "512MiB"]
    with subprocess.Popen([*command, *size], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("Ready on "), ready
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield ready.split()[2].rsplit(":", 1)[1]
        process.terminate()
        assert process.wait(30) == 0


def environment() -> dict[str, str]:
    here = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("block", all_blocks(*SHELL), ids=str)
def test_server_commands_have_flags_that_exist(block: Block) -> None:
    for command in filter(starts_server, commands_of(block)):
        words = shlex.split(command.removesuffix("&"))
        arguments = words[2:] if words[0] == "deeproot" else words[1:]
        if "--config" in arguments:  # read before the others; the files are checked below
            at = arguments.index("--config")
            del arguments[at : at + 2]
        given = [] if "--model" in arguments else ["--model", "x"]
        build_parser().parse_args(["serve", *given, *arguments])


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=str)
def test_config_files_have_flags_that_exist(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(block.text)
    parser = build_parser()
    args = parser.parse_args(with_config(["serve", "--config", str(path)], parser))
    assert args.max_num_seqs == 16


@pytest.mark.parametrize("block", all_blocks(*SHELL), ids=str)
def test_commands_run(block: Block, port: str, smollm2_path: Path, tmp_path: Path) -> None:
    commands = [c for c in commands_of(block) if not starts_server(c) and not is_setup(c)]
    if not commands:
        return
    for name in ("examples", "scripts", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = "set -euo pipefail\n" + "\n".join(commands)
    script = script.replace(f":{PORT}", f":{port}").replace(DEFAULT_MODEL, str(smollm2_path))
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert '"error"' not in done.stdout, done.stdout


@pytest.mark.parametrize("block", all_blocks("python"), ids=str)
def test_python_examples_run(block: Block, port: str, smollm2_path: Path, tmp_path: Path) -> None:
    source = block.text.replace(f":{PORT}", f":{port}").replace(DEFAULT_MODEL, str(smollm2_path))
    done = subprocess.run(
        [sys.executable, "-P", "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def test_links_inside_the_docs_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"
