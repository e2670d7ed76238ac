"""Templates in processes of their own: the same texts, and nothing that one does reaches the server."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat import template_frames as frames
from deeproot.runtime.chat.append_only import find_breaks
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.template_processes import TemplateProcesses
from deeproot.runtime.chat.template_programs import LocalTemplates
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conversations import TOOLS, WITH_CALLS
from .test_template_families import folder as folder
from .test_template_families import ours as ours
from .test_template_families import source_of

NOON = datetime(2024, 2, 29, 12)
HANGS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SHOWS = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


@pytest.fixture(scope="module")
def processes() -> Iterator[TemplateProcesses]:
    """With time enough for a busy machine."""
    made = TemplateProcesses(60.0)
    yield made
    made.close()


@pytest.fixture
def impatient() -> Iterator[TemplateProcesses]:
    made = TemplateProcesses(0.5)
    yield made
    made.close()


def rendered(processes: TemplateProcesses, source: str, **variables: Any) -> str:
    return processes.compile(source, lambda: NOON).render(variables)


@pytest.mark.parametrize("family", ["smollm2", "qwen2", "llama3", "features"])
def test_the_same_as_in_this_process(family: str, ours: Tokenizer, processes: TemplateProcesses) -> None:
    here = ChatTemplate(source_of(family), ours, now=lambda: NOON)
    there = ChatTemplate(source_of(family), ours, now=lambda: NOON, programs=processes)
    assert there.has_tools == here.has_tools
    assert find_breaks(there) == find_breaks(here)
    spelling = {"role": "user", "content": "<|im_end|> is no end, [INST] neither"}
    for messages in (*WITH_CALLS.values(), [spelling]):
        assert outcome(lambda m=messages: there.token_ids(m, TOOLS).tolist()) == outcome(
            lambda m=messages: here.token_ids(m, TOOLS).tolist()
        )


def outcome(work: Callable[[], object]) -> str:
    """What it gives, or why it is refused."""
    try:
        return str(work())
    except TemplateError as error:
        return f"refused: {error}"


def test_the_clock_is_the_servers(ours: Tokenizer, processes: TemplateProcesses) -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", ours, now=lambda: NOON, programs=processes)
    message = [{"role": "user", "content": "a"}]
    assert template.render(message) == "29 Feb 2024"
    assert template.with_clock(lambda: datetime(2025, 1, 2)).render(message) == "02 Jan 2025"


def json_like() -> st.SearchStrategy[Any]:
    text = st.text(st.characters(codec=None), max_size=20)
    scalars = st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False) | text
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=12,
    )


@settings(max_examples=60, deadline=None)
@given(value=json_like())
def test_any_variables_arrive_as_they_are(processes: TemplateProcesses, value: Any) -> None:
    source = "{{ x | tojson }}|{{ x }}|{{ x | tojson(indent=2) }}"
    assert rendered(processes, source, x=value) == LocalTemplates().compile(source, lambda: NOON).render(
        {"x": value}
    )


@settings(max_examples=60, deadline=None)
@given(source=st.lists(st.sampled_from(["{{", "}}", "{%", "%}", "{#", "for", "if", "in", "x", "|", ".", "(", "'", " "])
                       | st.text(max_size=3), max_size=12).map("".join))  # fmt: skip
def test_any_source_is_the_same_or_refused_alike(processes: TemplateProcesses, source: str) -> None:
    here = outcome(lambda: LocalTemplates().compile(source, lambda: NOON).render({"x": 1}))
    assert outcome(lambda: rendered(processes, source, x=1)) == here


@pytest.mark.parametrize("source", [HANGS, "{{ 'a' * 10**6 | int | string | length }}" + HANGS])
def test_a_template_that_hangs_is_stopped_and_the_next_works(
    impatient: TemplateProcesses, source: str
) -> None:
    assert rendered(impatient, SHOWS, messages=[{"content": "a"}]) == "<a>"
    (before,) = impatient.pids
    with pytest.raises(
        TemplateError, match=r"longer than its limit of 0\.5 s \(of a server: --chat-template-timeout\)"
    ):
        rendered(impatient, source)
    assert before not in impatient.pids
    assert not Path(f"/proc/{before}").exists()
    assert rendered(impatient, SHOWS, messages=[{"content": "b"}]) == "<b>"
    assert len(impatient.pids) == 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}",
        "{% set ns = namespace(t='aaaaaaaa') %}{% for i in range(64) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        "{{ '%*d' % (10**10, 1) }}",
        "{{ messages | tojson(indent=10**10) }}",
    ],
)
def test_a_template_that_takes_all_memory_is_refused(processes: TemplateProcesses, source: str) -> None:
    with pytest.raises(TemplateError, match="failed on this conversation"):
        rendered(processes, source, messages=[{"content": "a"}])
    assert rendered(processes, SHOWS, messages=[{"content": "b"}]) == "<b>"


def test_one_that_hangs_does_not_hold_up_another(processes: TemplateProcesses) -> None:
    patient = TemplateProcesses(30.0, max_processes=2)
    try:
        failures: list[TemplateError] = []

        def hang() -> None:
            try:
                rendered(patient, HANGS)
            except TemplateError as error:
                failures.append(error)

        hanging = threading.Thread(target=hang)
        hanging.start()
        assert rendered(patient, SHOWS, messages=[{"content": "b"}]) == "<b>"
        assert hanging.is_alive()
        for pid in patient.pids:
            os.kill(pid, signal.SIGKILL)
        hanging.join(60)
        assert len(failures) == 1
    finally:
        patient.close()


def test_one_killed_meanwhile_is_replaced(processes: TemplateProcesses) -> None:
    rendered(processes, SHOWS, messages=[])
    for pid in processes.pids:
        os.kill(pid, signal.SIGKILL)
    assert rendered(processes, SHOWS, messages=[{"content": "b"}]) == "<b>"


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ ''|attr(['__','class','__']|join) }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ dict.mro() }}",
    "{{ '{0.__class__}'.format(1) }}",  # CVE-2016-10745
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",  # CVE-2019-10906
    "{% set f = '{0.__class__.__init__}'.format %}{{ f(cycler) }}",  # CVE-2024-56326
    "{% set f = '{a.__class__}'.format_map %}{{ f({'a': 1}) }}",
    "{{ ('{0.__class__}'|attr('format'))(1) }}",  # CVE-2025-27516
    "{{ ['{0.__class__}']|map('format', 1)|list }}{{ '{0.__class__}'|attr('format')(cycler) }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ lipsum|attr('__globals__') }}",
    "{{ range.__self__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__code__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "{{ messages.__reduce_ex__(2) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].setdefault('a', 1) }}",
    "{{ messages.sort() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends '/etc/passwd' %}",
    "{{ config }}{{ request }}{{ get_flashed_messages.__globals__ }}{{ url_for.__globals__ }}",
]
REVEALED = re.compile(r"class|module|function|object at|uid=|root|<code|cell|globals")


@pytest.mark.parametrize("source", ESCAPES)
def test_known_escapes_from_the_sandbox_reveal_nothing(processes: TemplateProcesses, source: str) -> None:
    messages = [{"content": "a"}]
    try:
        text = rendered(processes, source, messages=messages)
    except TemplateError:
        return
    assert not REVEALED.search(text), text
    assert messages == [{"content": "a"}]


def test_the_process_holds_no_secrets(
    monkeypatch: pytest.MonkeyPatch, impatient: TemplateProcesses, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEEPROOT_TEST_SECRET", "hush")
    with open(tmp_path / "open", "w") as kept:
        os.set_inheritable(kept.fileno(), True)
        rendered(impatient, SHOWS, messages=[])
        (pid,) = impatient.pids
        assert b"hush" not in Path(f"/proc/{pid}/environ").read_bytes()
        descriptors = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
        assert kept.name not in descriptors
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) == 3


def test_a_process_that_has_given_up_its_rights_opens_nothing() -> None:
    program = (
        "import socket\nfrom deeproot.runtime.template_worker import give_up_rights\n"
        "give_up_rights(2**30)\n"
        "for attempt in (lambda: open('/etc/passwd'), socket.socket, lambda: bytearray(2**31)):\n"
        "    try:\n        attempt()\n    except (OSError, MemoryError) as error:\n"
        "        print(type(error).__name__)\n"
    )
    said = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["OSError", "OSError", "MemoryError"]


def test_a_worker_without_a_server_ends_by_its_alarm() -> None:
    ours, theirs = socket.socketpair()
    arguments = ("-P", "-m", "deeproot.runtime.template_worker", "0.2", str(2**30), str(2**20))
    with theirs:
        worker = subprocess.Popen([sys.executable, *arguments], stdin=theirs.fileno())
    with ours:
        frames.send(ours, frames.encode({"source": HANGS, "variables": {}, "now": NOON.isoformat()}))
    assert worker.wait(60) == -signal.SIGALRM


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | json_like().map(frames.encode))
def test_whatever_a_process_answers_is_a_reply_or_an_error(frame: bytes) -> None:
    try:
        reply = frames.decode_reply(frame)
    except ValueError:
        return
    assert isinstance(reply, frames.Reply)


def test_a_frame_that_is_too_long_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((2**40).to_bytes(8, "little"))
        with pytest.raises(ValueError, match="a frame of"):
            frames.receive(ours, 2**20)
