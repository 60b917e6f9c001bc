"""Every stage as a command (`python -m include.cli STAGE --dataset demo --shard 0`), and two that work on plain files:
`tokens render|reconstruct` and `audit FILE.parquet`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from include.core.connections import from_environment
from include.core.errors import PipelineError
from include.core.paths import Settings, Shard
from include.core.spec import dataset_named
from include.stages import STAGES, run_stage
from include.stages.shards import next_shard
from include.stages.work import Work


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 1 and one sentence on stderr where something is wrong, 2 for a wrong command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parser(words).parse_args(words)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.getLogger("paramiko").setLevel(logging.WARNING)
    try:
        return int(args.run(args))
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("stopped; what was finished is kept", file=sys.stderr)
        return 130


def _run_stages(args: argparse.Namespace) -> int:
    settings = Settings.from_environment(os.environ)
    spec = dataset_named(args.dataset)
    shard = next_shard(spec, settings) if args.shard is None else Shard(spec, args.shard, settings)
    work = Work(shard, from_environment(os.environ), args.limit, args.regenerate)
    for stage in STAGES if args.command == "all" else (args.command,):
        run_stage(stage, work)
    return 0


def _run_tokens(args: argparse.Namespace) -> int:
    from include.stages import token_files

    if args.what == "render":
        escape = args.control_tokens == "escape"
        token_files.render(args.target, args.tokenizer, args.input, sys.stdout, escape=escape)
    else:
        token_files.reconstruct(args.target, args.tokenizer, args.input, sys.stdout)
    return 0


def _run_audit_file(args: argparse.Namespace) -> int:
    from include.stages import audit_file, audit_report

    audit = audit_file.audit_file(
        args.file, Settings.from_environment(os.environ), args.tokenizer, args.target
    )
    if args.json:
        print(audit_report.as_json(audit))
    else:
        print(audit_report.as_text(str(args.file), audit))
    return 1 if audit.errors else 0


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m include.cli", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in (*STAGES, "all"):
        if name == "audit" and _audits_a_file(words):
            _audit_file_options(commands.add_parser("audit", help="hold a Parquet file against the rules"))
            continue
        stage = commands.add_parser(
            name,
            help="every stage in order" if name == "all" else "a stage of a dataset's shard",
            description="Runs a stage of a dataset's shard, as the Dag's task of the same name does. Folders come from "
            "EAGLE3_DATA_DIR and EAGLE3_MODELS_DIR, connections from AIRFLOW_CONN_<ID>."
            + (" With FILE.parquet instead of --dataset it audits that file." if name == "audit" else ""),
        )
        stage.set_defaults(run=_run_stages)
        stage.add_argument("--dataset", required=True, help="a file of include/datasets/, without .yaml")
        stage.add_argument("--shard", type=_index, help="0, 1, …; by default the lowest that isn't done")
        stage.add_argument("--limit", type=_positive, help="take only the first LIMIT prompts of the shard")
        stage.add_argument(
            "--regenerate",
            action="store_true",
            help="with generate: ask again for the samples that the last audit found malformed",
        )
    _tokens_options(commands.add_parser("tokens", help="render prompts or reconstruct answers, file by file"))
    return parser


def _audits_a_file(words: Sequence[str]) -> bool:
    return (
        words[:1] == ["audit"] and not any(w.split("=")[0] == "--dataset" for w in words) and len(words) > 1
    )


def _audit_file_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_audit_file)
    parser.add_argument("file", type=_file, metavar="FILE.parquet")
    parser.add_argument("--json", action="store_true", help="the whole report as JSON")
    parser.add_argument("--target", help="a file of include/targets/; by default the one that the file names")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="the model's folder; by default below EAGLE3_MODELS_DIR"
    )


def _tokens_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_tokens)
    parser.add_argument("what", choices=["render", "reconstruct"])
    parser.add_argument("--target", required=True, help="a file of include/targets/, without .yaml")
    parser.add_argument("--tokenizer", required=True, type=Path, metavar="DIR", help="the model's folder")
    parser.add_argument("--in", required=True, type=_file, dest="input", metavar="FILE.jsonl")
    parser.add_argument(
        "--control-tokens",
        choices=["leave_out", "escape"],
        default="leave_out",
        help="render: what is done with text that spells a control token",
    )


def _index(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("a shard is 0 or more")
    return value


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


if __name__ == "__main__":
    sys.exit(main())
