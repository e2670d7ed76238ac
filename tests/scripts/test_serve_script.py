"""`scripts/serve` as a user calls it: from any folder, twice in a row."""

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 200


@contextmanager
def serve(cwd: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [str(ROOT / "scripts" / "serve"), *arguments]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_serves_the_small_model_from_any_folder_twice(tmp_path: Path, smollm2_path: Path) -> None:
    for _ in range(2):
        with serve(tmp_path, "--port", "0", "--kv-cache-memory-bytes", "256MiB") as process:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("Ready"))
            (url,) = re.findall(r"Ready on (http://127\.0\.0\.1:\d+) ", line)
            body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
            assert (
                httpx.post(f"{url}/v1/chat/completions", json=body, timeout=TIME_LIMIT_S).status_code == 200
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_it_says_that_the_port_is_in_use(tmp_path: Path, smollm2_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [str(ROOT / "scripts" / "serve"), "--port", port]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode != 0
    assert f"port {port}" in done.stderr
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_says_when_python_is_missing(tmp_path: Path) -> None:
    copy = tmp_path / "scripts"
    copy.mkdir()
    for name in ("serve", "environment.sh"):
        (copy / name).write_text((ROOT / "scripts" / name).read_text())
        (copy / name).chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": "python-that-is-not-there"}
    done = subprocess.run([str(copy / "serve")], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "python-that-is-not-there not found" in done.stderr


def test_it_says_when_there_is_no_network(tmp_path: Path) -> None:
    """A fresh copy, whose pip finds nobody at the index that it is told to ask."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/serve", "scripts/environment.sh", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "constraints.txt").write_text("")
    (tmp_path / "scripts" / "serve").chmod(0o755)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHON": str(Path(ROOT / ".venv" / "bin" / "python").resolve()),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_TIMEOUT": "1",
    }
    done = subprocess.run(
        [str(tmp_path / "scripts" / "serve")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 1
    assert "is there a network" in done.stderr.splitlines()[-1]
