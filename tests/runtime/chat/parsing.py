"""Whole replies, parsed at once."""

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.reply_events import ParsedReply, collect
from deeproot.runtime.chat.reply_parser import ReplyParser


def parse_reply(parser: ReplyParser | CallParser, text: str) -> ParsedReply:
    """What a fresh parser makes of a whole reply."""
    return collect([*parser.feed(text), *parser.finish()])
