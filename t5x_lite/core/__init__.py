"""What every other folder uses: files, errors, options, trees, processes; nothing of models."""
