"""Ahead-of-time plans of a train step for devices that are not attached.

topologies.py  slices of chips by name
hlo.py       facts in the text of a compiled program: collectives and estimated cycles
links.py     how long collectives take at least
shards.py    parameters that a mesh cuts too narrow
attached.py  a slice that is there, next to the one that is meant
program.py   compiles a step and measures it
sheet.py     the result as text and as JSON
"""
