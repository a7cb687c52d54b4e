"""Training loops that ``bench migrate`` measures, and what each process records of itself."""
