"""Tasks: functions TaskArguments -> seqio.Task, named "tasks.module:function" in a config.

A wheel carries them inside the package. Modules of your own `tasks` win over these, and stand
beside them: `t5x_lite/core/project.py` says where they are looked for.
"""
