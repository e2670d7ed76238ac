"""`deeproot completion bash|zsh|tcsh`: a script that completes commands and flags."""

import argparse

import shtab

from deeproot.runtime.cli import build_parser


def run(args: argparse.Namespace) -> int:
    print(shtab.complete(build_parser(), args.shell))
    return 0
