"""`saturnmq spark`: hands the options of a pipeline to the spark package, which is an extra.

Requirements: CLI-01, PKG-05.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from saturnmq.extras import install_command
from saturnmq.protocol.errors import ConfigError


def run_check(args: argparse.Namespace) -> int:
    """Report what runs here, for `saturnmq spark --check`."""
    if not args.check:
        raise ConfigError(
            "name a pipeline, archive or pack, or give --check; saturnmq spark --help lists the pipelines"
        )
    return _run(args, ["--check"])


def run_pipeline(args: argparse.Namespace) -> int:
    """Run a pipeline, `archive` or `pack`."""
    if args.check:
        raise ConfigError(f"--check stands alone, without {args.action}")
    return _run(args, [args.action])


def _run(args: argparse.Namespace, arguments: Sequence[str]) -> int:
    try:
        for needed in ("pyarrow", "saturnmq.spark.pipelines.running"):
            importlib.import_module(needed)
        pipelines = importlib.import_module("saturnmq.spark.pipelines")
    except ImportError as error:
        refusal = ConfigError(f"the package {error.name}, which the pipelines of Spark need, is not installed")
        refusal.hint = f"Install it: {install_command('spark')}"
        raise refusal from error
    common = [f"--{name}" for name in ("json", "quiet") if getattr(args, name)]
    code: int = pipelines.main([*arguments, *common, *args.unparsed])
    return code
