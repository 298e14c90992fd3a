"""What all other folders use: errors, files, progress, parts by name."""
