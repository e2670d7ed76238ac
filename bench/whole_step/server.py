"""The product's server in front of an engine without a model: `python -m deeproot.bench.whole_step.server`."""

import argparse

from deeproot.runtime.logs import set_up_logging
from deeproot.runtime.options import EngineOptions, ServerOptions
from deeproot.runtime.server.process import serve_until_signal
from deeproot.runtime.server.serve import bind

ENGINE_MODULE = "deeproot.bench.whole_step.null_engine"


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="whose tokenizer and template are used")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    args = parser.parse_args()
    server = ServerOptions(port=args.port, log_level="warning")
    engine = EngineOptions(model=args.model, max_num_seqs=args.max_num_seqs)
    set_up_logging(server.log_level, server.log_format)
    serve_until_signal(engine, server, bind(server), engine_module=ENGINE_MODULE)


if __name__ == "__main__":
    main()
