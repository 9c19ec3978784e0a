"""Ahead-of-time plans of a train step for devices that are not attached.

topologies.py  names and sizes of TPU slices
hlo.py         collectives and estimated cycles from the text of a compiled program
program.py     compilation of a train step, and its memory and cost
sheet.py       report as text and as JSON
"""
