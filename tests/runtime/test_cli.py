"""The command line, in process: flags to options, and what stays unloaded."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from deeproot import __version__
from deeproot.runtime.cli import build_parser, engine_options, main
from deeproot.runtime.model_search import home_folder
from deeproot.runtime.options import EngineOptions, LimitOptions, ServerOptions, SetupError
from deeproot.runtime.serve_flags import server_options

from .tiny_model import write_tiny_model


def parse(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(arguments)


def test_the_defaults_are_those_of_the_options() -> None:
    args = parse("serve", "--model", "m")
    assert engine_options(args) == EngineOptions(model="m")
    assert server_options(args) == ServerOptions()


def test_every_flag_reaches_its_option(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("third\nfourth\n")
    line = (
        "serve --model m --load-format dummy --dtype float32 --quantization int8 --device cpu --chat-template t.jinja --max-model-len 99 "
        "--attention-backend triton --kv-cache-dtype fp8 "
        "--threads 3 --max-num-seqs 3 --max-num-batched-tokens 50 --block-size 32 --kv-cache-memory-bytes 1GiB --seed 7 "
        "--upload-timeout 2 --slow-reader-timeout 3 --keep-alive-timeout 4 --stuck-after 5 "
        "--host 0.0.0.0 --port 9 --served-model-name a b --api-key first --api-key second "
        f"--api-key-file {keys} --shutdown-timeout 1.5 --max-queued-requests 4 --max-body-bytes 1M --log-level debug"
    )
    args = parse(*line.split())
    assert engine_options(args) == EngineOptions(
        model="m",
        load_format="dummy",
        dtype="float32",
        quantization="int8",
        threads=3,
        device="cpu",
        attention_backend="triton",
        kv_cache_dtype="fp8",
        chat_template=Path("t.jinja"),
        max_model_len=99,
        max_num_seqs=3,
        max_num_batched_tokens=50,
        page_size=32,
        kv_cache_memory_bytes=2**30,
        seed=7,
    )
    assert server_options(args) == ServerOptions(
        host="0.0.0.0",
        port=9,
        served_model_names=("a", "b"),
        api_keys=("first", "second", "third", "fourth"),
        shutdown_timeout_s=1.5,
        max_queued_requests=4,
        max_body_bytes=10**6,
        log_level="debug",
        limits=LimitOptions(
            upload_timeout_s=2.0, slow_reader_timeout_s=3.0, keep_alive_timeout_s=4, stuck_after_s=5.0
        ),
    )
    assert "first" not in repr(server_options(args))


def test_a_key_file_must_hold_keys(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "empty"):
        (tmp_path / "empty").write_text("\n")
        with pytest.raises(SetupError, match="--api-key-file"):
            server_options(parse("serve", "--model", "m", "--api-key-file", str(path)))


def test_version_and_help_load_nothing_heavy() -> None:
    code = (
        "import sys; from deeproot.runtime.cli import main\n"
        "try: main(['--version'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'fastapi', 'tokenizers', 'numpy', 'rich'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"deeproot {__version__}\n"


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "serve" in capsys.readouterr().err


def test_doctor_says_what_there_is(capsys: pytest.CaptureFixture[str], smollm2_path: Path) -> None:
    assert main(["doctor", "--model", str(smollm2_path)]) == 0
    text = capsys.readouterr().out
    for word in (
        "CPU",
        "memory",
        "GPU",
        "torch",
        "compiler",
        "LlamaForCausalLM",
        "attention",
        "dtype",
        "threads",
        "faster",
    ):
        assert word in text


def test_doctor_in_json(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    assert main(["doctor", "--json", "--model", str(tiny_model)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["deeproot"] == __version__
    assert report["models"][0]["max_model_len"] == 2048
    assert report["cpu"]["usable_cores"] >= 1
    assert report["memory"]["available_bytes"] <= report["memory"]["total_bytes"]
    assert report["choice"]["dtype"] in ("bfloat16", "float32")
    assert all(report["choice"].values())


def test_doctor_and_a_model_that_cannot_be_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_tiny_model(tmp_path, architectures=["MambaForCausalLM"])
    assert main(["doctor", "--model", str(tmp_path)]) == 1
    assert "MambaForCausalLM" in capsys.readouterr().out


def test_doctor_looks_in_the_cache_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    # What is compiled already is used, wherever the home is.
    (tmp_path / "cpu").symlink_to(home_folder() / "cpu")
    monkeypatch.setenv("DEEPROOT_HOME", str(tmp_path))
    assert main(["doctor"]) == 0
    assert "none found" in capsys.readouterr().out
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine").symlink_to(tiny_model)
    assert main(["doctor"]) == 0
    assert str(tmp_path / "models" / "mine") in capsys.readouterr().out
