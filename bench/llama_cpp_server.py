"""llama.cpp's server out of the `xllamacpp` wheel, as a peer for `deeproot bench replay --compare`.

    python bench/llama_cpp_server.py MODEL.gguf PORT [--threads 2] [--window 8192] [--slots 8]

For an environment of its own with `pip install xllamacpp`; nothing of deeproot is needed there. Its prompt cache is on as
it is by default, counters at /metrics; each slot has a window of its own, and with one slot requests wait for each other.
"""

import argparse
import importlib
import os
import threading
from typing import Any


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("port", type=int)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--window", type=int, default=8192, help="tokens")
    parser.add_argument("--slots", type=int, default=1, help="requests at a time (default: %(default)s)")
    args = parser.parse_args()
    library = importlib.import_module("xllamacpp")
    params: Any = library.CommonParams()
    params.model.path = args.model
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.n_ctx = args.window * args.slots
    params.n_parallel = args.slots
    params.n_gpu_layers = 0
    params.endpoint_metrics = True
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    server = library.Server(params)
    print(f"Ready on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
