"""Files that hold one thing a line, or one vector a row: reading, checking, writing them.

Lines and JSON Lines, plain or compressed; texts with ids; pairs; BEIR directories; GLUE's files;
arrays of vectors; outputs that go on where they stopped; and what reads ahead or in processes.
"""
