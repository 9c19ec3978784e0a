"""The modules that run on Apache Beam, imported only where a runner is asked for."""

import importlib
import logging
from types import ModuleType

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command

_logger = logging.getLogger(__name__)


def load_driver(module: str, *, runner: str, extras: str) -> ModuleType:
    """A module that imports Beam.

    Args:
      module: its full name.
      runner: what asks for it, for messages.
      extras: with which this package has what the module needs.

    Raises:
      InputError: Beam, or what else the module needs, is missing.
    """
    silent = logging.NullHandler()
    logging.root.addHandler(silent)  # Beam warns at its import of what only BigQuery needs
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"--runner {runner} needs Apache Beam, which is missing: "
            f"{install_command(*extras.split(','))}"
        ) from error
    finally:
        logging.root.removeHandler(silent)
    _logger.info("handing the pipeline to %s, and waiting for its end", runner)
    return found
