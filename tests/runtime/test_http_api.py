"""Streams of events, however their bytes come."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.http_api import lines_of, stream_events


@given(
    texts=st.lists(
        st.text(max_size=8) | st.sampled_from(["a\u2028b", "\u0085", "\x0c\x1c", "é\r"]), max_size=6
    ),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_events_are_those_that_were_sent(texts: list[str], cuts: list[int], end: str) -> None:
    sent = "".join(f"data: {json.dumps({'t': text}, ensure_ascii=False)}{end}{end}" for text in texts)
    data = (sent + f"data: [DONE]{end}{end}").encode()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parts = [data[i:j] for i, j in pairwise(places)]
    assert [event["t"] for event in stream_events(lines_of(parts))] == texts
