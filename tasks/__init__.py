"""Task functions, which return a seqio.Task; a config names a function "tasks.module:function".

A wheel contains these modules inside the package. Modules of a custom package `tasks` take
precedence; `t5x_lite/core/project.py` defines where modules are searched.
"""
