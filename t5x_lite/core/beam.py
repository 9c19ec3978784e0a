"""Apache Beam's runners and their options, as a command line names them.

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
    """Beam's options of a command line."""
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
        raise InputError(f"an option of Beam: {words[-1].partition('error: ')[2]}") from error
    return found
