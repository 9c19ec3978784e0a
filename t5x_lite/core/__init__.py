"""The base of all folders: files, errors, options, trees, processes; no models."""
