"""The daemon's side of the prober: ring layout, typed reader, control client."""
