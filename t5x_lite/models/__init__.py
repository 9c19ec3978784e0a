"""Model architectures: configs, modules, and presets of the published sizes."""
