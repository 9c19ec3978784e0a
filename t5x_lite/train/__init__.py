"""Training: the loop, the step that it runs, and the record that it leaves."""
