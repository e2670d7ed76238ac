"""What is left of the chatter of curl, wget and pip."""

import pytest

from deeproot.runtime.context.filters.headers import HeaderFilter
from deeproot.runtime.context.filters.terminal import TerminalFilter

from .outputs import ALONE, output


def headers(name: str) -> str:
    return HeaderFilter().apply(TerminalFilter().apply(output(name), ALONE).text, ALONE).text


def test_curl_keeps_request_status_and_address() -> None:
    kept = headers("curl_verbose.txt")
    assert kept.split("\n")[:4] == [
        "> GET /bigpkg-1.0-py3-none-any.whl HTTP/1.1",
        "> Host: 127.0.0.1:8765",
        "< HTTP/1.0 200 OK",
        "< Content-type: application/octet-stream",
    ]


def test_curl_body_stays_whole() -> None:
    body = output("curl_head.txt").split("\r\n\r\n", 1)[1]
    kept = headers("curl_head.txt")
    assert kept.endswith("\n\n" + body)
    assert "Server:" not in kept


@pytest.mark.parametrize("name", ["curl_missing.txt", "wget_missing.txt"])
def test_a_failed_download_still_says_so(name: str) -> None:
    assert "404" in headers(name)
    assert "/nothing" in headers(name)


def test_wget_dots_go_and_the_file_stays() -> None:
    kept = headers("wget_pipe.txt")
    assert "...... " not in kept
    assert "saved [6000645/6000645]" in kept
    assert len(kept) < len(output("wget_pipe.txt")) / 40


@pytest.mark.parametrize("name", ["curl_progress.txt", "curl_progress_pipe.txt"])
def test_a_meter_alone_leaves_a_note(name: str) -> None:
    assert headers(name).startswith("[transfer meter, ")


def test_pip_bar_goes() -> None:
    kept = headers("pip_progress.txt")
    assert "━" not in kept
    assert "Downloading http://127.0.0.1:8765/bigpkg-1.0-py3-none-any.whl (6.0 MB)" in kept
