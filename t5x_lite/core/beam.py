"""Options of Apache Beam's runners, parsed from a command line.

pipeline_options("FlinkRunner", ["--flink_master=host:8081"])
"""

import contextlib
import io
from collections.abc import Sequence

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import create_runner

from t5x_lite.core.errors import InputError

DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"


def pipeline_options(runner: str, options: Sequence[str]) -> PipelineOptions:
    """Return Beam's pipeline options for a runner and its command-line options."""
    name = DASK if runner.lower().removesuffix("runner") == "dask" else runner
    told = io.StringIO()
    try:
        create_runner(name)
        with contextlib.redirect_stderr(told):
            found = PipelineOptions([*options, f"--runner={name}"])
            found.get_all_options()
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"--runner {runner}: {error}") from error
    except SystemExit as error:  # argparse
        words = told.getvalue().strip().splitlines() or ["a wrong value"]
        raise InputError(
            f"wrong option of Apache Beam: {words[-1].partition('error: ')[2]}"
        ) from error
    return found
