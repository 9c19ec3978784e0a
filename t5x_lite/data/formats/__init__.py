"""Readers and writers of files with one record per line or one vector per row.

Lines and JSON Lines, plain or compressed; tables; passages; pairs; BEIR directories; GLUE's files;
rankings; arrays of vectors; outputs that resume where they stopped.
"""
