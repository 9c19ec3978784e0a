"""Training objectives: configs and loss modules. `base` defines their interfaces."""
