"""Import and export of other libraries' checkpoints, with tables that map tensor names."""
