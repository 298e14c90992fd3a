"""What every other part uses: errors, files, progress, parts by name."""
