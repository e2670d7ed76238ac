"""The flags of `deeproot explain`; no heavy imports, so that the command line starts fast."""

from typing import Any

from deeproot.runtime.flags import whole


def add_explain(commands: Any) -> None:
    command = commands.add_parser(
        "explain",
        help="say why a request's prompt was or was not cached",
        description="Ask a running server why the prompt of a request was or was not cached; without an id, list the "
        "latest requests.",
        allow_abbrev=False,
    )
    command.set_defaults(module="deeproot.runtime.explain.command")
    command.add_argument("rid", nargs="?", metavar="RID", help="the id of an answer, such as chatcmpl-…")
    command.add_argument(
        "--url", default="http://127.0.0.1:8000", help="server to ask (default: %(default)s)"
    )
    command.add_argument(
        "--api-key", default="", metavar="KEY", help="the key that the requests were sent with"
    )
    command.add_argument(
        "--limit",
        type=whole(1, 1000),
        default=20,
        metavar="N",
        help="how many to list (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
