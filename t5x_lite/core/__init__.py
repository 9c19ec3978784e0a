"""Code that all other folders use: files, errors, options, trees, processes; no models."""
