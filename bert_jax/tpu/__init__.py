"""What a TPU would do with a program: chips, slices, compiled programs, estimates of a step."""
