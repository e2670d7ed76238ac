"""Flags: those of other engines, a YAML file with the same names, names of models, completion, log formats."""

import argparse
import json
import logging
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.cli import build_parser, engine_options, main
from deeproot.runtime.config_file import expand_config
from deeproot.runtime.flags import add_engine_flags
from deeproot.runtime.logs import set_up_logging
from deeproot.runtime.options import SetupError
from deeproot.runtime.serve_flags import server_options


def parse(*arguments: str) -> tuple[object, object]:
    args = build_parser().parse_args(["serve", *arguments])
    return engine_options(args), server_options(args)


@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [
        ("--max-running-requests", "7", "max_num_seqs"),
        ("--chunked-prefill-size", "77", "max_num_batched_tokens"),
        ("--context-length", "777", "max_model_len"),
        ("--block-size", "16", "page_size"),
    ],
)
def test_names_of_other_engines_mean_the_same(flag: str, value: str, field: str) -> None:
    engine, _ = parse("--model-path", "x", flag, value)
    assert getattr(engine, field) == int(value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tensor-parallel-size", "1"],
        ["-tp", "1"],
        ["--kv-cache-dtype", "auto"],
        ["--enable-prefix-caching"],
        ["--enable-auto-tool-choice"],
    ],
)
def test_what_is_done_anyway_is_accepted(arguments: list[str]) -> None:
    assert parse("--model", "x", *arguments) == parse("--model", "x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tensor-parallel-size", "2"], ["--tensor-parallel-size 2", "one device"]),
        (["--quantization", "awq"], ["--quantization", "awq", "gguf"]),
        (["--trust-remote-code"], ["--trust-remote-code", "no code"]),
        (["--disable-radix-cache"], ["--disable-radix-cache", "always"]),
        (["--no-async-scheduling"], ["--no-async-scheduling", "--overlap off"]),
        (["--no-such-flag"], ["--no-such-flag"]),
        (["--gpu-memory-utilization", "1.5"], ["--gpu-memory-utilization", "between"]),
    ],
)
def test_what_is_not_supported_is_one_clear_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "--model", "x", *arguments])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words)


def test_flags_of_other_engines_stay_out_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert "--max-num-seqs" in text
    assert "--tensor-parallel-size" not in text


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def parse_config(path: Path, *arguments: str) -> tuple[object, object]:
    return parse(*expand_config(["--config", str(path), *arguments], serve_parser()))


def serve_parser() -> argparse.ArgumentParser:
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return commands.choices["serve"]


def test_a_config_file_has_the_names_of_the_flags(tmp_path: Path) -> None:
    text = "model: m.gguf\nmax_num_seqs: 3\nkv-cache-memory-bytes: 1GiB\nserved-model-name: [a, b]\nenforce-eager: true\n"
    expected = parse(
        "--model",
        "m.gguf",
        "--max-num-seqs",
        "3",
        "--kv-cache-memory-bytes",
        "1GiB",
        "--served-model-name",
        "a",
        "b",
        "--enforce-eager",
    )
    assert expected[0].enforce_eager
    assert parse_config(write(tmp_path, text)) == expected


def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    engine, server = parse_config(write(tmp_path, "model: m\nport: 1\nmax-num-seqs: 3\n"), "--port", "2")
    assert (engine.max_num_seqs, server.port) == (3, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle: x\n", ["modle", "no flag"]),
        ("model: {a: 1}\n", ["model", "value or a list"]),
        ("model: [[1]]\n", ["model", "value or a list"]),
        ("- model\n", ["names of flags"]),
        ("model: [\n", ["not YAML"]),
        ("config: x.yaml\n", ["config", "no flag"]),
    ],
)
def test_a_bad_config_file_is_named(
    tmp_path: Path, text: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, text)
    assert main(["serve", "--config", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in [str(path), *words])


def test_a_missing_config_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml cannot be read" in capsys.readouterr().err


@given(st.binary(max_size=60))
def test_no_config_file_gives_anything_but_flags_or_a_setup_error(data: bytes) -> None:
    command = argparse.ArgumentParser()
    add_engine_flags(command, model_required=False)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        problem, words = file.name, ["--seed", "1"]
        try:
            words = expand_config(["--config", file.name, "--seed", "1"], command)
        except SetupError as error:
            problem = str(error)
        assert file.name in problem
        assert words[-2:] == ["--seed", "1"]


def test_a_model_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], smollm2_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / smollm2_path.name).symlink_to(smollm2_path)
    (tmp_path / "models" / "broken.gguf").write_bytes(b"GGUFnot really")
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"]}')
    monkeypatch.setenv("DEEPROOT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    engine, _ = parse("--model", "SmolLM2-135M-Instruct")
    assert Path(engine.model).name == smollm2_path.name
    assert main(["models", "--json", "--url", "http://127.0.0.1:9"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["served"] is None
    found = {model["name"]: model for model in report["found"]}
    assert found["SmolLM2-135M-Instruct"]["max_model_len"] == 8192
    assert "problem" in found["broken"]
    assert "NoSuchForCausalLM" in found["org/name"]["problem"]
    assert "LlamaForCausalLM" in report["supported"]
    assert main(["models", "--url", "http://127.0.0.1:9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("served     nothing")
    assert any(line.startswith("found      SmolLM2-135M-Instruct: LlamaForCausalLM") for line in lines)


def test_bash_completes_commands_and_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "deeproot.bash"
    script.write_text(capsys.readouterr().out)
    ask = (
        f"source {script}; COMP_WORDS=(deeproot serve --max-num); COMP_CWORD=2; "
        "$(complete -p deeproot | sed 's/.*-F \\([^ ]*\\).*/\\1/') deeproot --max-num serve; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"--max-num-seqs", "--max-num-batched-tokens"} <= set(done.stdout.split())


def test_json_logs_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    root, ours = logging.getLogger(), logging.getLogger("deeproot")
    before = (root.handlers[:], root.level, ours.level)
    try:
        set_up_logging("info", "json")
        try:
            raise ValueError("ö\nsecond line")
        except ValueError:
            logging.getLogger("deeproot.x").exception("it %s", "failed")
        logging.getLogger("deeproot.x").debug("not shown")
    finally:
        root.handlers[:], root.level = before[0], before[1]
        ours.setLevel(before[2])
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "deeproot.x", "it failed")
    assert "second line" in entry["exception"]
    assert entry["time"].endswith("+00:00")
