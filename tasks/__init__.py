"""Tasks: functions TaskArguments -> seqio.Task, named "tasks.module:function" in a config.

Importable from a checkout, not installed with the package.
"""
