"""Files that hold one thing a line, or one vector a row: reading, checking, writing them.

Lines and JSON Lines, plain or compressed; tables; passages; pairs; BEIR directories; GLUE's files;
rankings; arrays of vectors; outputs that go on where they stopped.
"""
