"""Training objectives: frozen configs and their loss modules. `base` defines both."""
