"""Every stage as a command: python -m include.cli STAGE --dataset demo --shard 0."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from include.core.connections import from_environment
from include.core.errors import PipelineError
from include.core.paths import Settings, Shard
from include.core.spec import dataset_named
from include.stages import STAGES, run_stage
from include.stages.shards import next_shard
from include.stages.work import Work


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one stage, or `all` of them in order; 1 and one sentence on stderr where something is wrong."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.getLogger("paramiko").setLevel(logging.WARNING)
    try:
        work = _work(args)
        for stage in STAGES if args.stage == "all" else (args.stage,):
            run_stage(stage, work)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what was finished is kept", file=sys.stderr)
        return 130
    return 0


def _work(args: argparse.Namespace) -> Work:
    settings = Settings.from_environment(os.environ)
    spec = dataset_named(args.dataset)
    shard = next_shard(spec, settings) if args.shard is None else Shard(spec, args.shard, settings)
    return Work(shard, from_environment(os.environ), args.limit)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m include.cli",
        description="Runs a stage of a dataset's shard, as the Dag's task of the same name does. Folders come from "
        "EAGLE3_DATA_DIR and EAGLE3_MODELS_DIR, connections from AIRFLOW_CONN_<ID>.",
    )
    parser.add_argument("stage", choices=[*STAGES, "all"], metavar="STAGE", help=", ".join([*STAGES, "all"]))
    parser.add_argument("--dataset", required=True, help="a file of include/datasets/, without .yaml")
    parser.add_argument("--shard", type=_index, help="0, 1, …; by default the lowest one that isn't done")
    parser.add_argument("--limit", type=_positive, help="take only the first LIMIT prompts of the shard")
    return parser


def _index(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("a shard is 0 or more")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


if __name__ == "__main__":
    sys.exit(main())
